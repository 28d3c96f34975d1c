import assert from 'node:assert/strict'
import { PassThrough } from 'node:stream'
import { test } from 'node:test'
import { readLogBatches } from '../../../src/control/streams/log-batches.ts'
import { asId, type SandboxId } from '../../../src/domain/ids.ts'
import { encodeLogLines } from '../../../src/worker/logs/log-lines.ts'
import { EVERYTHING, makeTestLogs } from '../../support/logs.ts'
import { countPerTurn } from '../../support/most-per-turn.ts'

// Many readers of a log with very short lines. The worker and the server parse a block of it at a time.

const BOX = asId<SandboxId>('box')
const LINES = 20_000
const READERS = 8
/** More than the entries of 64 KiB, which are at least 32 bytes each in a file and more on the way to the server. */
const BLOCK_ENTRIES = 2_048
/** What arrives at the server at a time. */
const PIECE = 64 * 1024

for (const query of [EVERYTHING, { ...EVERYTHING, tail: LINES }])
  test(`many readers of short lines take a block in a turn of the event loop, ${query.tail === null ? 'from the start' : 'from the end'}`, async (t) => {
    const { logs, remove } = await makeTestLogs()
    t.after(remove)
    const stream = logs.writerOf(BOX).stream('stdout')
    stream.write(Buffer.from('\n'.repeat(LINES)))
    stream.end()
    const read = async (count: () => void): Promise<string> => {
      let text = ''
      const entries = logs.read(BOX, query, new AbortController().signal)
      const counted = (async function* () {
        for await (const entry of entries) {
          count()
          yield entry
        }
      })()
      for await (const piece of encodeLogLines(counted, query)) text += piece
      return text
    }
    const ofWorker = countPerTurn()
    const texts = await Promise.all(Array.from({ length: READERS }, () => read(() => ofWorker.count())))
    assert.equal(ofWorker.total(), READERS * LINES)
    assert.ok(ofWorker.most() <= 2 * BLOCK_ENTRIES, `${String(ofWorker.most())} entries in a turn of the worker`)

    const ofServer = countPerTurn()
    await Promise.all(
      texts.map(async (text) => {
        const arriving = new PassThrough()
        for (let at = 0; at < text.length; at += PIECE) arriving.write(text.slice(at, at + PIECE))
        arriving.end()
        for await (const { entries } of readLogBatches(arriving)) ofServer.count(entries.length > 0 ? 1 : 0)
      }),
    )
    assert.ok(ofServer.most() <= 2, `${String(ofServer.most())} batches in a turn of the server`)
  })
