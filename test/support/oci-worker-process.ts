import type { WantedRun } from '../../src/contract/worker-protocol.ts'
import { makeOciFixture } from './oci-driver.ts'

/** A worker process to be killed: starts the run given as its second argument over the fixture in its first. */
const [dir = '', wantedText = '{}'] = process.argv.slice(2)
const wanted = JSON.parse(wantedText) as WantedRun // written by the test that started this process
const fixture = await makeOciFixture(dir)
const driver = await fixture.open({ diskPool: 0 })
const keepAlive = setInterval(() => undefined, 1000)
process.stdout.write('open\n')
await driver.start(wanted, new AbortController().signal)
process.stdout.write('started\n')
process.once('SIGTERM', () => {
  clearInterval(keepAlive)
})
