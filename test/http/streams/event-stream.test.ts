import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { test } from 'node:test'
import { openEventStream } from '../../../src/http/streams/event-stream.ts'

const KEEP_ALIVE_MS = 300

test('a keep-alive comment follows one interval after the last event, not up to two', async () => {
  const order: string[] = []
  async function* texts(): AsyncGenerator<string> {
    await sleep(KEEP_ALIVE_MS / 10)
    // Timers run in the order of their times, however late. These begin with the interval, so their order shows when the comment was due.
    for (const part of [0.9, 1.7]) setTimeout(() => order.push(`${String(part)} intervals`), part * KEEP_ALIVE_MS)
    yield 'data: 1\n\n'
    await sleep(3 * KEEP_ALIVE_MS)
  }
  for await (const chunk of openEventStream(texts(), { keepAliveMs: KEEP_ALIVE_MS }))
    if (order.push(String(chunk)) === 4) break
  assert.deepEqual(order, [': keep-alive\n\n', 'data: 1\n\n', '0.9 intervals', ': keep-alive\n\n'])
})
