/**
 * The program of the worker of `sandyard up`. It has no secret on its command line or in its environment: `up` sends it everything
 * over the pipe between them, and it ends when that pipe is closed.
 */
import { mkdir } from 'node:fs/promises'
import { Registry } from 'prom-client'
import { readConfig, type Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { systemRandom } from '../../lib/random.ts'
import { rateLimitedLog } from '../../lib/rate-limited-log.ts'
import { DataFolderInUse, lockDataFolder, type DataFolderLock } from '../../store/embedded/data-lock.ts'
import { makeControlPlane } from '../../worker/agent/control-plane.ts'
import { beginIncarnation } from '../../worker/agent/incarnation.ts'
import type { Driver } from '../../worker/drivers/driver.ts'
import { tuneMemory } from '../tune-memory.ts'
import { withSyncMetrics } from '../metrics/machine-metrics.ts'
import { openLog } from '../open-log.ts'
import { localWorkerFolder } from '../server/data-folder.ts'
import { listenForMetrics } from '../worker/metrics-listener.ts'
import {
  closeWorkerHost,
  loadDemoImage,
  openWorkerHost,
  runWorkerAgent,
  waitForFirstSync,
  type WorkerHost,
  type WorkerHostDeps,
} from '../worker/worker-host.ts'
import { incarnationFilePath } from '../worker/worker-storage.ts'
import type { WorkerStart } from './messages.ts'
import { makeConnectionServer } from './serve-connections.ts'
import { openSupervisorPipe } from './supervisor-pipe.ts'

/** How often, and how long apart, the lock of an earlier worker's process is tried: it was killed just now. */
const LOCK_TRIES = 200
const LOCK_PAUSE_MS = 50

process.title = 'sandyard: worker'

const metrics = new Registry()
const pipe = openSupervisorPipe(() => metrics.metrics())
const exitCode = await run()
pipe.close()
process.exit(exitCode)

/** Runs the worker until `up` stops it. Resolves with the exit code. */
async function run(): Promise<number> {
  const start = await pipe.started
  const config = readConfig(start.settings, {})
  const log = rateLimitedLog(openLog(config), systemClock)
  try {
    using _lock = await lockWhenFree(localWorkerFolder(config.dataDir))
    const host = await openHost(config, { folder: start.folder, log })
    if (host === null) return 0
    try {
      await using _listener = await listenForMetrics(config, metrics)
      await runUntilStopped(config, { host, start, log })
    } finally {
      await closeWorkerHost(config, host)
    }
    return 0
  } catch (error) {
    log.error({ error }, 'the worker of this machine failed')
    return 1
  }
}

/** Opens the worker's host. Tells `up` why no driver works on this machine, and then resolves with null. */
async function openHost(config: Config, deps: Omit<WorkerHostDeps, 'config'>): Promise<WorkerHost | null> {
  try {
    return await openWorkerHost({ config, ...deps }, { fencesItself: false, metrics })
  } catch (error) {
    deps.log.error({ error }, 'no driver')
    pipe.tell({ kind: 'unusable', message: error instanceof Error ? error.message : String(error) })
    return null
  }
}

type Opened = { readonly host: WorkerHost; readonly start: WorkerStart; readonly log: Log }

async function runUntilStopped(config: Config, { host, start, log }: Opened): Promise<void> {
  const { connect } = host.driver
  if (connect !== undefined)
    pipe.serveConnections(makeConnectionServer({ connect, tell: (event, socket) => pipe.tell(event, socket) }))
  pipe.tell({ kind: 'opened', connects: connect !== undefined })
  const failed = new AbortController()
  const signal = AbortSignal.any([pipe.stopping, failed.signal])
  const synced = Promise.withResolvers<void>()
  const identity = {
    worker_id: start.worker_id,
    incarnation: await beginIncarnation({ clock: systemClock, random: systemRandom }, incarnationFilePath(config)),
    controlPlane: withSyncMetrics(metrics, {
      controlPlane: makeControlPlane({ url: start.url, credential: start.credential, pin: () => pipe.fingerprint() }),
      clock: systemClock,
    }),
    onSynced: () => synced.resolve(),
  }
  const prepare = async (): Promise<void> => {
    await loadDemoImage({ config, log }, host)
    await waitForFirstSync(synced.promise, signal)
    if (!signal.aborted) pipe.tell({ kind: 'ready' })
    tuneMemory()
  }
  try {
    const local = { ...host, driver: outliving(host.driver) }
    await Promise.all([runWorkerAgent({ config, log }, { host: local, identity }, signal), prepare()])
  } finally {
    failed.abort(new Error('the worker ends'))
  }
}

/**
 * Reports that runs go on without the worker. `up` starts its worker again whenever it dies, and the sandboxes continue meanwhile, so
 * the control plane must not declare them lost and start them elsewhere.
 */
function outliving(driver: Driver): Driver {
  return {
    ...driver,
    async probe() {
      const probe = await driver.probe()
      return { ...probe, report: { ...probe.report, runs_outlive_worker: true } }
    },
  }
}

/** Locks the folder of the worker as soon as the process of an earlier worker, which was just killed, has ended. */
async function lockWhenFree(path: string): Promise<DataFolderLock> {
  await mkdir(path, { recursive: true, mode: 0o700 })
  for (let tries = 1; ; tries++) {
    try {
      return lockDataFolder(path)
    } catch (error) {
      if (!(error instanceof DataFolderInUse) || tries === LOCK_TRIES) throw error
      await systemClock.sleep(LOCK_PAUSE_MS)
    }
  }
}
