import type { DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import { makeNoLogs } from '../../src/worker/logs/logs.ts'
import { EVERYTHING, makeTestLogs } from './logs.ts'
import { makeOciFixture } from './oci-driver.ts'

const NEVER = new AbortController().signal

/**
 * A worker process that a test kills. Its arguments are the folder of a fixture, a desired run as JSON, which it
 * starts, and optionally a folder for logs. It prints when it has opened the driver and started the run, and each log
 * entry of the run.
 */
const [dir = '', desiredText = '{}', logsDir] = process.argv.slice(2)
const desired = JSON.parse(desiredText) as DesiredRun // written by the test that started this process
const logs = logsDir === undefined ? makeNoLogs() : (await makeTestLogs({ dir: logsDir })).logs
const fixture = await makeOciFixture(dir, undefined, logs)
const driver = await fixture.open({ readyAhead: 0 })
const keepAlive = setInterval(() => undefined, 1000)
process.stdout.write('open\n')
await driver.start(desired, NEVER)
process.stdout.write('started\n')
const follow = { ...EVERYTHING, follows: true }
void (async () => {
  for await (const { text } of logs.read(desired.sandbox_id, follow, NEVER)) process.stdout.write(`logged ${text}`)
})()
process.once('SIGTERM', () => {
  clearInterval(keepAlive)
})
