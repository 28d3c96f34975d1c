import { asId, type SandboxId } from '../../src/domain/ids.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { makeTestLogs, readAll } from './logs.ts'

/**
 * A process that a test kills. It writes numbers to the log of a sandbox without end, and prints a line once it has
 * written 1,000.
 */
const [dir = '', sandbox = ''] = process.argv.slice(2)
const id = asId<SandboxId>(sandbox)
const { logs } = await makeTestLogs({ dir })
const stream = logs.writerOf(id).stream('stdout')
for (let line = 0; ; line++) {
  stream.write(Buffer.from(`${String(line)}\n`))
  if (line === 1_000) {
    await readAll(logs, id)
    process.stdout.write('written\n')
  }
  if (line % 100 === 0) await systemClock.sleep(1)
}
