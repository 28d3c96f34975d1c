import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { test } from 'node:test'
import { openEventStream } from '../../../src/http/streams/event-stream.ts'

const KEEP_ALIVE_MS = 1_000

test('a keep-alive comment follows one interval after the last event, not up to two', async () => {
  async function* texts(): AsyncGenerator<string> {
    await sleep(KEEP_ALIVE_MS / 10)
    yield 'data: 1\n\n'
    await sleep(3 * KEEP_ALIVE_MS)
  }
  const stream = openEventStream(texts(), { keepAliveMs: KEEP_ALIVE_MS })
  const seen: { readonly text: string; readonly atMs: number }[] = []
  for await (const chunk of stream) {
    seen.push({ text: String(chunk), atMs: performance.now() })
    if (seen.length === 3) break
  }
  assert.deepEqual(
    seen.map(({ text }) => text),
    [': keep-alive\n\n', 'data: 1\n\n', ': keep-alive\n\n'],
  )
  const gapMs = (seen[2]?.atMs ?? 0) - (seen[1]?.atMs ?? 0)
  assert.ok(gapMs > 0.9 * KEEP_ALIVE_MS && gapMs < 1.7 * KEEP_ALIVE_MS, `${String(gapMs)} ms`)
})
