import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { after, describe, test } from 'node:test'
import { NO_EGRESS_SECRETS } from '../../../src/domain/network/interception.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { openEgress } from '../../../src/worker/egress/open-egress.ts'
import { isOnOwnMachine } from '../../support/own-network.ts'
import { makeTestClock } from '../../support/test-clock.ts'
import { waitUntil } from '../../support/wait.ts'

const SETTINGS = { gateway: '127.0.0.1', egress: [], strict: false, ...NO_EGRESS_SECRETS }

if (isOnOwnMachine(import.meta.filename)) {
  describe('the egress process', () => {
    const clock = makeTestClock()
    const log = makeLog('silent')
    const egress = openEgress({ namespace: '/proc/self/ns/net', clock, log, onRefused: () => undefined })
    after(() => egress.close())

    test('a process that hangs is killed and started again, and what waits for its answer goes on', async () => {
      await egress.set('10.0.0.1', SETTINGS)
      const hanging = processId()
      process.kill(hanging, 'SIGSTOP')
      const isSet = egress.set('10.0.0.2', SETTINGS)
      await waitUntil(() => clock.sleepers === 2) // the watch, and the limit of the answer
      clock.advance(30_000)
      await isSet
      await egress.set('10.0.0.3', SETTINGS)
      assert.notEqual(processId(), hanging)
    })

    test('a process that hangs is noticed without anybody who waits for it', async () => {
      const hanging = processId()
      process.kill(hanging, 'SIGSTOP')
      clock.advance(30_000)
      await waitUntil(() => clock.sleepers === 1) // the limit of the answer that the watch asked for
      clock.advance(30_000)
      await waitUntil(() => ![null, hanging].includes(findProcess()))
      await egress.set('10.0.0.1', SETTINGS)
    })
  })
}

function processId(): number {
  const pid = findProcess()
  assert.ok(pid !== null)
  return pid
}

/** The process of the user of the egress process. There is one on this machine. */
function findProcess(): number | null {
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  return pids.map(Number).find((pid) => /\nUid:\t60998\t/.test(readStatus(pid))) ?? null
}

function readStatus(pid: number): string {
  try {
    return readFileSync(`/proc/${String(pid)}/status`, 'utf8')
  } catch {
    return '' // it ended
  }
}
