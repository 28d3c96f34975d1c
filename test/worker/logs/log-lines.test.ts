import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { LogEntry } from '../../../src/contract/streams/log-protocol.ts'
import { encodeLogLines } from '../../../src/worker/logs/log-lines.ts'

test('entries that are available at once are sent together, and none waits for the next one', async () => {
  const gate = Promise.withResolvers<void>()
  let isLeft = false
  async function* entries(): AsyncGenerator<LogEntry> {
    try {
      for (let offset = 0; offset < 1_000; offset++) yield entryAt(offset)
      await gate.promise
      yield entryAt(1_000)
    } finally {
      isLeft = true
    }
  }
  const lines = encodeLogLines(entries(), { follows: true })
  const pieces: string[] = []
  while (pieces.join('').split('\n').length <= 1_000) pieces.push((await lines.next()).value ?? assert.fail())
  assert.ok(pieces.length < 5, String(pieces.length))
  gate.resolve()
  for await (const piece of lines) pieces.push(piece)
  const sent: readonly unknown[] = pieces.join('').trimEnd().split('\n').map((line) => JSON.parse(line) as unknown) // prettier-ignore
  assert.deepEqual(sent, [...Array.from({ length: 1_001 }, (_, offset) => entryAt(offset)), { end: 'ended' }])
  assert.equal(isLeft, true)
})

test('when the entries fail, the lines fail after everything that came before', async () => {
  async function* entries(): AsyncGenerator<LogEntry> {
    yield entryAt(1)
    await Promise.resolve()
    throw new Error('the disk is gone')
  }
  const lines = encodeLogLines(entries(), { follows: false })
  const seen: string[] = []
  await assert.rejects(async () => {
    for await (const piece of lines) seen.push(piece)
  }, /the disk is gone/)
  assert.equal(seen.length, 1)
})

function entryAt(offset: number): LogEntry {
  return { position: { generation: 1, offset }, source: 'stdout', ts: '2026-11-21T12:00:00.000Z', text: 'line\n' }
}
