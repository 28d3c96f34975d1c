import { registerWorker } from '../../control/workers/worker-join.ts'
import { rateLimitedLog } from '../../lib/rate-limited-log.ts'
import { systemClock } from '../../lib/clock.ts'
import { LOCAL_WORKER_NAME } from '../../domain/workers/worker.ts'
import { openLog } from '../open-log.ts'
import { systemRandom } from '../../lib/random.ts'
import { makeControlPlane } from '../../worker/agent/control-plane.ts'
import { beginIncarnation } from '../../worker/agent/incarnation.ts'
import type { Command } from 'commander'
import type { Registry } from 'prom-client'
import { addSettings, runs, type Call } from '../command.ts'
import { requireFreePort } from '../server/listen-address.ts'
import { lockDataFolder } from '../../store/embedded/data-lock.ts'
import { ensureDataFolder, openDataFolder } from '../server/data-folder.ts'
import { mountDataFolder } from '../server/data-mount.ts'
import { loadDemoImage, closeWorkerHost, runWorkerAgent, openWorkerHost, waitForFirstSync, type WorkerHost, type WorkerHostDeps } from '../worker/worker-host.ts' // prettier-ignore
import { openServerStore } from '../server/open-server-store.ts'
import { freeDatabaseBallast } from '../server/open-store.ts'
import { requireNoOtherServer } from '../server/up-exclusivity.ts'
import { withSyncMetrics } from '../metrics/machine-metrics.ts'
import { createFirstKey } from '../server/first-key.ts'
import { openBrowser } from '../server/open-browser.ts'
import { printDashboard } from '../server/print-dashboard.ts'
import { printStatus } from '../print-status.ts'
import { startControl, type RunningControl } from '../server/start-control.ts'
import { incarnationFilePath } from '../worker/worker-storage.ts'
import { parsePublish } from '../../domain/workers/publishing.ts'
import { printClientSetup } from './print-client-setup.ts'
import { listenForStopSignals, waitForAbort } from '../stop-signals.ts'

/** Defines `sandyard up`, which runs the database, the control plane and a worker in one process. */
export function defineUp(up: Command): void {
  addSettings(
    up,
    'host',
    'port',
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

async function runUp({ config: given, switches }: Call): Promise<void> {
  const log = rateLimitedLog(openLog(given), systemClock)
  const stop = listenForStopSignals(given)
  await requireFreePort(given)
  await ensureDataFolder(given.dataDir)
  freeDatabaseBallast(given, log)
  using _lock = lockDataFolder(given.dataDir)
  const folder = await openDataFolder(given.dataDir, systemRandom, given.secretKey)
  printStatus(`data folder: ${given.dataDir}`)
  await using mounted = await mountDataFolder(folder)
  const config = { ...given, dataDir: mounted.path, publish: given.publish ?? parsePublish('loopback') }
  await using store = await openServerStore(config, log)
  const signal = AbortSignal.any([stop, store.schema.incompatible])
  await using control = await startControl(config, folder, store, log)
  if (config.databaseUrl !== null) requireNoOtherServer(control) // the embedded database serves this process alone
  let missing: string | null = 'starting: the local worker is not ready yet'
  control.addReadiness(() => Promise.resolve(missing))
  const first = await createFirstKey(control.deps, config)
  await using host = await tryOpenWorkerHost({ config, folder, log }, control.metrics)
  const failed = new AbortController()
  const ending = AbortSignal.any([signal, failed.signal])
  const synced = Promise.withResolvers<void>()
  const working =
    host === null
      ? waitForAbort(ending)
      : runLocalWorker({ config, folder, log }, { control, host, onSynced: synced.resolve }, ending)
  // The worker may fail before `await working` below. Without this handler, the failure would be an unhandled rejection
  // and end the process.
  working.catch(() => synced.resolve())
  try {
    if (host !== null) {
      await loadDemoImage({ config, log }, host)
      await waitForFirstSync(synced.promise, ending)
    }
    missing = host === null ? 'no driver can run sandboxes here; see `sandyard doctor`' : null
    printClientSetup(given, control, first)
    await printDashboard(control, first, switches.has('open') ? (link) => openBrowser(link, given.dataDir) : null)
    await working // a permanent failure of the worker ends the program with its error
  } finally {
    failed.abort(new Error('the server ends'))
    await working.catch(() => undefined) // thrown above
  }
  store.schema.incompatible.throwIfAborted()
}

/**
 * Opens the worker's host. Returns null if no driver works on this machine. The API runs without a worker, too: clients
 * can read, and starts report what is missing.
 */
async function tryOpenWorkerHost(
  deps: WorkerHostDeps,
  metrics: Registry,
): Promise<(WorkerHost & AsyncDisposable) | null> {
  try {
    // `fencesItself` is false because no other server process exists. So nobody can mark the sandboxes as lost, and
    // start them elsewhere, while this process is frozen or can't reach the database.
    const host = await openWorkerHost(deps, { fencesItself: false, metrics })
    return { ...host, [Symbol.asyncDispose]: () => closeWorkerHost(deps.config, host) }
  } catch (error) {
    deps.log.error({ error }, 'no driver')
    printStatus(`SANDBOXES CAN'T RUN HERE: ${error instanceof Error ? error.message : String(error)}`)
    printStatus('`sandyard doctor` shows what is missing. The API works, and starts wait for a worker')
    return null
  }
}

type LocalWorker = { readonly control: RunningControl; readonly host: WorkerHost; readonly onSynced: () => void }

/** Registers the local worker and runs its agent until the signal is aborted. */
async function runLocalWorker(
  { config, folder, log }: WorkerHostDeps,
  { control, host, onSynced }: LocalWorker,
  signal: AbortSignal,
): Promise<void> {
  const credential = folder.workerCredential
  const worker_id = await registerWorker(control.deps, { name: LOCAL_WORKER_NAME, credential })
  const identity = {
    worker_id,
    incarnation: await beginIncarnation({ clock: systemClock, random: systemRandom }, incarnationFilePath(config)),
    controlPlane: withSyncMetrics(control.metrics, {
      controlPlane: makeControlPlane({ url: control.url, credential, pin: () => control.fingerprint() }),
      clock: systemClock,
    }),
    onSynced,
  }
  const { connect } = host.driver
  const remove = connect === undefined ? null : control.deps.nearWorkers.add(worker_id, connect)
  try {
    await runWorkerAgent({ config, log }, { host, identity }, signal)
  } finally {
    remove?.()
  }
}
