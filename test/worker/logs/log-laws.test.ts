import assert from 'node:assert/strict'
import { test } from 'node:test'
import { array, assert as hold, asyncProperty, constant, integer, nat, oneof, record } from 'fast-check'
import type { LogEntry, LogPosition } from '../../../src/contract/streams/log-protocol.ts'
import { asId, type SandboxId } from '../../../src/domain/ids.ts'
import { makeTestLogs, readAll } from '../../support/logs.ts'

const BOX = asId<SandboxId>('box')
/** A limit so small that rotation often deletes files. */
const LIMITS = { sandboxBytes: 4_096 }

const anyStep = oneof(
  record({
    kind: constant('write' as const),
    lines: integer({ min: 1, max: 60 }),
    width: integer({ min: 1, max: 300 }),
  }),
  record({ kind: constant('flush' as const) }),
  record({ kind: constant('read' as const), reader: nat(2), stopsAfter: nat(40) }),
  record({ kind: constant('restart' as const) }),
)

test('across writes, rotation and restarts, each kept entry is read once and in order, and a position yields exactly the rest', async () => {
  await hold(
    asyncProperty(array(anyStep, { minLength: 1, maxLength: 25 }), nat(), async (steps, choice) => {
      const first = await makeTestLogs({ limits: LIMITS })
      let { logs, remove } = first
      const readers: { at: LogPosition | null; last: number }[] = [0, 1, 2].map(() => ({ at: null, last: -1 }))
      let written = 0
      try {
        for (const step of steps) {
          if (step.kind === 'write') {
            const stream = logs.writerOf(BOX).stream('stdout')
            for (let line = 0; line < step.lines; line++)
              stream.write(Buffer.from(`${String(written++).padEnd(step.width, ' ')}\n`))
          } else if (step.kind === 'restart') {
            await logs.close()
            ;({ logs, remove } = await makeTestLogs({ dir: first.dir, limits: LIMITS }))
          } else if (step.kind === 'read') {
            const reader = readers[step.reader] ?? assert.fail()
            const all = numbersOf(await readAll(logs, BOX))
            const given = (await readAll(logs, BOX, { after: reader.at })).slice(0, step.stopsAfter)
            const expected = all.filter((number) => number > reader.last).slice(0, step.stopsAfter)
            assert.deepEqual(numbersOf(given), expected)
            reader.at = given.at(-1)?.position ?? reader.at
            reader.last = numbersOf(given).at(-1) ?? reader.last
          } else await readAll(logs, BOX, { tail: 0 })
        }
        const all = await readAll(logs, BOX)
        const numbers = numbersOf(all)
        assert.equal(numbers.at(-1) ?? -1, written - 1)
        assert.deepEqual(numbers, Array.from(numbers, (_, index) => written - numbers.length + index)) // prettier-ignore
        const index = choice % (all.length + 1)
        assert.deepEqual(await readAll(logs, BOX, { after: all[index - 1]?.position ?? null }), all.slice(index))
        assert.deepEqual(await readAll(logs, BOX, { tail: all.length - index }), all.slice(index))
      } finally {
        await remove()
      }
    }),
    { numRuns: 60 },
  )
})

function numbersOf(entries: readonly LogEntry[]): readonly number[] {
  return entries.map(({ text }) => Number(text))
}
