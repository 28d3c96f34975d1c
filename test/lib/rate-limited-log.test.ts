import assert from 'node:assert/strict'
import { test } from 'node:test'
import { rateLimitedLog } from '../../src/lib/rate-limited-log.ts'
import type { Log } from '../../src/lib/log.ts'
import { makeTestClock } from '../support/test-clock.ts'

test('a failure that is logged a thousand times per second writes a few lines, which contain the number of omitted ones', () => {
  const lines: { readonly message: string; readonly fields: object }[] = []
  const clock = makeTestClock()
  const log = rateLimitedLog(collecting(lines), clock)
  for (let i = 0; i < 1_000; i++) log.warn({ i }, 'refused')
  log.error({}, 'something else')
  assert.equal(lines.length, 6)
  clock.advance(10_000)
  log.child({ part: 'of it' }).warn({ i: -1 }, 'refused')
  assert.deepEqual(lines.at(-1), { message: 'refused', fields: { i: -1, omitted: 995 } })
})

function collecting(lines: { readonly message: string; readonly fields: object }[]): Log {
  const note = (fields: object, message: string): void => {
    lines.push({ message, fields })
  }
  const log: Log = { debug: note, info: note, warn: note, error: note, child: () => log }
  return log
}
