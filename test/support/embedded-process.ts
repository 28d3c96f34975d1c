/** Runs an embedded PostgreSQL on the folder in argv until it is killed. Prints its address as one line of JSON. */
import { systemClock } from '../../src/lib/clock.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { startEmbedded } from '../../src/store/embedded/embedded-server.ts'

const dataDir = process.argv[2]
if (dataDir === undefined) throw new Error('which data folder?')
const server = await startEmbedded({ dataDir, log: makeLog('error'), clock: systemClock, random: systemRandom })
process.stdout.write(`${JSON.stringify({ url: server.ownerConnectionString, postmaster: server.pid() })}\n`)
// Keeps this process running until SIGTERM, SIGKILL, or the end of its input when its parent ends.
process.stdin.resume()
process.stdin.once('end', () => void server.stop())
process.once('SIGTERM', () => {
  process.stdin.destroy()
  void server.stop()
})
