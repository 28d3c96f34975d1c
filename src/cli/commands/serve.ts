import { createFirstOrg } from '../../control/orgs/create-first-org.ts'
import { rateLimitedLog } from '../../lib/rate-limited-log.ts'
import { systemClock } from '../../lib/clock.ts'
import { makeLog } from '../../lib/log.ts'
import { systemRandom } from '../../lib/random.ts'
import type { Call, Command } from './command.ts'
import { openDataFolder } from '../server/data-folder.ts'
import { requireNoUpServer } from '../server/up-exclusivity.ts'
import { openStore } from '../server/open-store.ts'
import { printStatus } from '../print-status.ts'
import { startControl } from '../server/start-control.ts'
import { printClientSetup } from './tell-how-to-use.ts'
import { listenForStopSignals, waitForAbort } from '../until-stopped.ts'

export const serve: Command = {
  usage: 'serve [--host ADDRESS] [--port PORT] [--advertise-url URL]',
  summary: 'the control plane without a worker; any number of them on one PostgreSQL (DATABASE_URL)',
  details: `  DATABASE_URL=postgresql://…   the same for each process; without it the embedded one, for this process alone
  SANDYARD_SECRET_KEY=…         the same for each process: openssl rand -base64 32
  --advertise-url URL           how workers reach this very process; needed beside others where --host is 0.0.0.0

Sandboxes run on workers: \`sandyard worker token\`, then \`sandyard worker --join URL\` on each machine. It ends in order by SIGTERM;
a second signal ends it at once. docs/replicas.md says what holds when one of several dies.
`,
  run: runServe,
}

async function runServe({ config }: Call): Promise<number> {
  const log = rateLimitedLog(makeLog(config.logLevel), systemClock)
  const stop = listenForStopSignals()
  const folder = await openDataFolder(config.dataDir, systemRandom, config.secretKey)
  printStatus(config.databaseUrl === null ? 'starting the embedded PostgreSQL' : 'using the PostgreSQL of DATABASE_URL')
  await using store = await openStore(config, log)
  const signal = AbortSignal.any([stop, store.schema.incompatible])
  await using control = await startControl(config, folder, store, log)
  await requireNoUpServer(control)
  const first = await createFirstOrg(control.deps, config.apiKey)
  printStatus('this process runs no sandboxes: that is for workers')
  printClientSetup(control.url, first?.key ?? null, config.apiKey !== null)
  await waitForAbort(signal)
  store.schema.incompatible.throwIfAborted()
  return 0
}
