import { rateLimitedLog } from '../../lib/rate-limited-log.ts'
import { systemClock } from '../../lib/clock.ts'
import { openLog } from '../open-log.ts'
import { systemRandom } from '../../lib/random.ts'
import type { Command } from 'commander'
import { addSettings, runs, type Call } from '../command.ts'
import { requireFreePort } from '../server/listen-address.ts'
import { openDataFolder } from '../server/data-folder.ts'
import { mountDataFolder } from '../server/data-mount.ts'
import { requireNoUpServer } from '../server/up-exclusivity.ts'
import { openServerStore } from '../server/open-server-store.ts'
import { createFirstKey } from '../server/first-key.ts'
import { tuneMemory } from '../tune-memory.ts'
import { printDashboard } from '../server/print-dashboard.ts'
import { printStatus } from '../print-status.ts'
import { printUnknownSettings } from '../print-unknown-settings.ts'
import { startControl } from '../server/start-control.ts'
import { sharePort } from '../server-process/share-port.ts'
import { printClientSetup } from './print-client-setup.ts'
import { listenForStopSignals, waitForAbort } from '../stop-signals.ts'

const HELP = `
To run several server processes on one database, give all of them the same values of:
  DATABASE_URL=postgresql://…   without it, the embedded PostgreSQL serves this process alone
  DATABASE_OWNER_URL=…          for a role of its own that owns the tables and migrates them
  SANDYARD_SECRET_KEY=…         create it with: openssl rand -base64 32
If --host is 0.0.0.0, give each process its own --advertise-url. Beyond loopback the API speaks TLS: docs/tls.md.

Sandboxes run on workers: run \`sandyard worker token\` here, then \`sandyard worker --join URL\` on each machine. SIGTERM ends
the server cleanly; a second signal ends it at once. docs/replicas.md describes what happens when a server process fails.`

/**
 * Defines `sandyard serve`, which runs the control plane without a worker. Any number of these processes may share one
 * PostgreSQL.
 */
export function defineServe(serve: Command): void {
  serve.addHelpText('after', HELP)
  runs(
    addSettings(
      serve,
      'host',
      'port',
      'processes',
      'sshPort',
      'advertiseUrl',
      'tlsCert',
      'tlsKey',
      'insecure',
      'dataDir',
      'placement',
      'requireIsolation',
      'logLevel',
    ),
    runServe,
  )
}

async function runServe({ config: given, given: texts }: Call): Promise<void> {
  const log = rateLimitedLog(openLog(given), systemClock)
  const stop = listenForStopSignals(given)
  await requireFreePort(given)
  printUnknownSettings(process.env)
  const folder = await openDataFolder(given.dataDir, systemRandom, given.secretKey)
  await using mounted = await mountDataFolder(folder)
  const config = { ...given, dataDir: mounted.path }
  await using store = await openServerStore(config, log)
  const signal = AbortSignal.any([stop, store.schema.incompatible])
  await using control = await startControl(config, folder, store, { log, index: 0 })
  await requireNoUpServer(control)
  const first = await createFirstKey(control.deps, config)
  await using servers = await sharePort({ given: texts, config, folder, store, control, log })
  await Promise.race([servers.begun, waitForAbort(signal)])
  printStatus('this process runs no sandboxes; workers run them')
  printClientSetup(given, control, first)
  await printDashboard(control, first)
  tuneMemory()
  await waitForAbort(signal)
  store.schema.incompatible.throwIfAborted()
}
