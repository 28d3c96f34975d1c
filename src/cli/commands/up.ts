import type { Command } from 'commander'
import { SettingError, SETTINGS, type Config } from '../../config.ts'
import { endRunsWithWorker, registerWorker } from '../../control/workers/worker-join.ts'
import { LOCAL_WORKER_NAME } from '../../domain/workers/worker.ts'
import { systemClock } from '../../lib/clock.ts'
import { systemRandom } from '../../lib/random.ts'
import { rateLimitedLog } from '../../lib/rate-limited-log.ts'
import type { Log } from '../../lib/log.ts'
import { lockDataFolder } from '../../store/embedded/data-lock.ts'
import { addSettings, runs, type Call } from '../command.ts'
import type { WorkerStart } from '../local-worker/messages.ts'
import { tuneMemory } from '../tune-memory.ts'
import { superviseWorker, type SupervisedWorker } from '../local-worker/supervise-worker.ts'
import { workerSettings } from '../local-worker/worker-settings.ts'
import { openLog } from '../open-log.ts'
import { printStatus } from '../print-status.ts'
import { printUnknownSettings } from '../print-unknown-settings.ts'
import { ensureDataFolder, openDataFolder, type DataFolder } from '../server/data-folder.ts'
import { mountDataFolder } from '../server/data-mount.ts'
import { createFirstKey } from '../server/first-key.ts'
import { requireFreePort } from '../server/listen-address.ts'
import { openBrowser } from '../server/open-browser.ts'
import { openServerStore } from '../server/open-server-store.ts'
import { freeDatabaseBallast } from '../server/open-store.ts'
import { printDashboard } from '../server/print-dashboard.ts'
import { startControl, type RunningControl } from '../server/start-control.ts'
import { requireNoOtherServer } from '../server/up-exclusivity.ts'
import { requireHostReserve } from '../worker/require-host-reserve.ts'
import { listenForStopSignals, waitForAbort } from '../stop-signals.ts'
import { sharePort } from '../server-process/share-port.ts'
import { printClientSetup } from './print-client-setup.ts'

/** Defines `sandyard up`, which runs the database, the control plane and a worker. */
export function defineUp(up: Command): void {
  addSettings(
    up,
    'host',
    'port',
    'processes',
    'sshPort',
    'advertiseUrl',
    'tlsCert',
    'tlsKey',
    'insecure',
    'dataDir',
    'driver',
    'runtime',
    'placement',
    'requireIsolation',
    'publish',
    'shutdown',
    'logLevel',
  )
  up.option('--open', 'open the dashboard in a browser, signed in as the owner who joined first')
  runs(up, runUp)
}

async function runUp({ config: given, given: texts, switches }: Call): Promise<void> {
  refuseDrain(given)
  requireHostReserve(given)
  const log = rateLimitedLog(openLog(given), systemClock)
  const stop = listenForStopSignals(given)
  await requireFreePort(given)
  await ensureDataFolder(given.dataDir)
  freeDatabaseBallast(given, log)
  using _lock = lockDataFolder(given.dataDir)
  const folder = await openDataFolder(given.dataDir, systemRandom, given.secretKey)
  printStatus(`data folder: ${given.dataDir}`)
  printUnknownSettings(process.env)
  await using mounted = await mountDataFolder(folder)
  const config = { ...given, dataDir: mounted.path }
  await using store = await openServerStore(config, log)
  const signal = AbortSignal.any([stop, store.schema.incompatible])
  await using control = await startControl(config, folder, store, { log, index: 0 })
  if (config.databaseUrl !== null) requireNoOtherServer(control) // the embedded database serves this process alone
  let missing: string | null = 'starting: the local worker is not ready yet'
  control.addReadiness(() => Promise.resolve(missing))
  const first = await createFirstKey(control.deps, config)
  const settings = settingsOf(texts, { path: config.dataDir, publish: given.publish })
  await using worker = startWorker({ control, folder, settings, log }, (state) => {
    missing = state
  })
  control.addMetrics(() => worker.readMetrics())
  await Promise.race([worker.begun, waitForAbort(signal)])
  await using servers = await sharePort({ given: texts, config, folder, store, control, log })
  await Promise.race([servers.begun, waitForAbort(signal)])
  printClientSetup(given, control, first)
  await printDashboard(control, first, switches.has('open') ? (link) => openBrowser(link, given.dataDir) : null)
  tuneMemory()
  await waitForAbort(signal)
  store.schema.incompatible.throwIfAborted()
}

/** Throws `SettingError` for a drain: while `up` ends, nothing could take new sandboxes in its worker's place. */
function refuseDrain({ shutdown }: Config): void {
  if (shutdown !== 'drain') return
  const { variable, flag } = SETTINGS.shutdown
  throw new SettingError(
    `${variable} (--${flag}) is "drain", which only \`sandyard worker\` does; accepted by \`sandyard up\`: keep, stop`,
  )
}

const NO_DRIVER = 'no driver can run sandboxes here; see `sandyard doctor`'

/**
 * The settings of the worker: those of `up`, with the mounted data folder. Published ports are on loopback unless a
 * setting says otherwise.
 */
function settingsOf(
  given: Call['given'],
  { path, publish }: { readonly path: string; readonly publish: Config['publish'] },
): WorkerStart['settings'] {
  const { dataDir, publish: publishing } = SETTINGS
  return workerSettings(given, {
    [dataDir.variable]: path,
    ...(publish === null ? { [publishing.variable]: 'loopback' } : {}),
  })
}

type LocalWorkerInput = {
  readonly control: RunningControl
  readonly folder: DataFolder
  readonly settings: WorkerStart['settings']
  readonly log: Log
}

/**
 * Starts the worker in a process of its own. `onState` hears why it can't run sandboxes, or null. The API runs without a worker, too:
 * clients can read, and starts report what is missing.
 */
function startWorker(
  { control, folder, settings, log }: LocalWorkerInput,
  onState: (why: string | null) => void,
): SupervisedWorker {
  const { deps, ownUrl: url } = control
  const { path, namePrefix, workerCredential: credential } = folder
  return superviseWorker({
    clock: systemClock,
    log,
    fingerprint: () => control.fingerprint(),
    async start() {
      const worker_id = await registerWorker(deps, { name: LOCAL_WORKER_NAME, credential })
      return { settings, folder: { path, namePrefix }, worker_id, credential, url }
    },
    onConnects: (worker_id, connect) => deps.nearWorkers.add(worker_id, connect),
    onReady: () => onState(null),
    async onUnusable(worker_id, message) {
      onState(NO_DRIVER)
      printStatus(`SANDBOXES CAN'T RUN HERE: ${message}`)
      printStatus('`sandyard doctor` shows what is missing. The API works, and starts wait for a worker')
      await endRunsWithWorker(deps, worker_id)
    },
  })
}
