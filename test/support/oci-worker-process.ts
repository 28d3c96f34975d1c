import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import type { DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import { makeNoLogs } from '../../src/worker/logs/logs.ts'
import { EVERYTHING, makeTestLogs } from './logs.ts'
import { makeOciFixture, testWarm } from './oci-driver.ts'
import { waitUntil } from './wait.ts'
import { warmUp } from './warm-up.ts'

const NEVER = new AbortController().signal

/**
 * A worker process that a test kills. Its arguments are the folder of a fixture, a desired run as JSON, which it
 * starts, and optionally a folder for logs. It prints when it has opened the driver and started the run, and each log
 * entry of the run. With SANDYARD_TEST_WARM, it prints when the first warm sandbox is being made, and when two are ready. Then it
 * starts the run.
 */
const [dir = '', desiredText = '{}', logsDir] = process.argv.slice(2)
const desired = JSON.parse(desiredText) as DesiredRun // written by the test that started this process
const logs = logsDir === undefined ? makeNoLogs() : (await makeTestLogs({ dir: logsDir })).logs
const fixture = await makeOciFixture(dir, undefined, logs)
const driver = await fixture.open({ readyAhead: 0 })
const keepAlive = setInterval(() => undefined, 1000)
process.stdout.write('open\n')
if (testWarm() > 0) {
  const warming = warmUp(driver, 2)
  await waitUntil(() => existsSync(join(dir, 'state/runs')) && readdirSync(join(dir, 'state/runs')).some(isWarm))
  process.stdout.write('warming\n')
  await warming
  process.stdout.write('warm\n')
}
await driver.start(desired, NEVER)
process.stdout.write('started\n')
const follow = { ...EVERYTHING, follows: true }
void (async () => {
  for await (const { text } of logs.read(desired.sandbox_id, follow, NEVER)) process.stdout.write(`logged ${text}`)
})()
process.once('SIGTERM', () => {
  clearInterval(keepAlive)
})

/** Whether a folder of a container belongs to no run. */
function isWarm(name: string): boolean {
  return existsSync(join(dir, 'state/runs', name, 'pid')) && !existsSync(join(dir, 'state/runs', name, 'state.json'))
}
