import type { DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import { makeNoLogs } from '../../src/worker/logs/logs.ts'
import { EVERYTHING, makeTestLogs } from './logs.ts'
import { makeOciFixture } from './oci-driver.ts'

const NEVER = new AbortController().signal

/**
 * A worker process to be killed: starts the run given as its second argument over the fixture in its first. With a folder
 * for logs as its third, it says what is logged.
 */
const [dir = '', wantedText = '{}', logsDir] = process.argv.slice(2)
const wanted = JSON.parse(wantedText) as DesiredRun // written by the test that started this process
const logs = logsDir === undefined ? makeNoLogs() : (await makeTestLogs({ dir: logsDir })).logs
const fixture = await makeOciFixture(dir, undefined, logs)
const driver = await fixture.open({ diskPool: 0 })
const keepAlive = setInterval(() => undefined, 1000)
process.stdout.write('open\n')
await driver.start(wanted, NEVER)
process.stdout.write('started\n')
const follow = { ...EVERYTHING, follows: true }
void (async () => {
  for await (const { text } of logs.read(wanted.sandbox_id, follow, NEVER)) process.stdout.write(`logged ${text}`)
})()
process.once('SIGTERM', () => {
  clearInterval(keepAlive)
})
