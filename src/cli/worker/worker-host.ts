import { rm } from 'node:fs/promises'
import { interruptibleSleep, systemClock } from '../../lib/clock.ts'
import type { Config } from '../../config.ts'
import type { SyncAnswer } from '../../contract/workers/worker-protocol.ts'
import type { WorkerId } from '../../domain/ids.ts'
import { SELF_FENCE_MS } from '../../domain/workers/lease.ts'
import type { Log } from '../../lib/log.ts'
import { systemRandom } from '../../lib/random.ts'
import { runAgent } from '../../worker/agent/agent.ts'
import type { ControlPlane } from '../../worker/agent/control-plane.ts'
import type { Driver } from '../../worker/drivers/driver.ts'
import { ensureDemoImage } from '../../worker/images/demo.ts'
import { openLease, type Lease } from '../../worker/agent/lease.ts'
import type { SandboxLogs } from '../../worker/logs/logs.ts'
import { makeVolumeFilesOpener } from '../../worker/volumes/volume-files.ts'
import type { VolumeStorage } from '../../worker/volumes/volume-storage.ts'
import type { DataFolder } from '../server/data-folder.ts'
import { openDriver } from './open-driver.ts'
import { printStatus } from '../print-status.ts'
import { leaseFilePath, openImages, openLogs, openVolumes, UID_SHIFT } from './worker-storage.ts'

/** What runs sandboxes on this machine, and what keeps their volumes and logs. */
export type WorkerHost = {
  readonly driver: Driver
  readonly storage: VolumeStorage
  readonly logs: SandboxLogs
  /** How long sandboxes may run without a word from the control plane; null: for ever. */
  readonly lease: Lease | null
}

/** What a machine is opened with. */
export type WorkerHostDeps = { readonly config: Config; readonly folder: DataFolder; readonly log: Log }

/**
 * Opens the driver, the volumes and the logs of this machine, and says what they are. `fencesItself` is false only where
 * worker and control plane are one process: nothing else could run its sandboxes meanwhile. Rejects when no driver works
 * here.
 */
export async function openWorkerHost(
  deps: WorkerHostDeps,
  { fencesItself }: { readonly fencesItself: boolean },
): Promise<WorkerHost> {
  await using opened = new AsyncDisposableStack()
  const storage = opened.adopt(await openVolumes(deps.config, deps.log), (one) => one.close())
  printStatus(`volumes: ${storage.report.how}`)
  const logs = opened.adopt(await openLogs(deps.config, deps.log), (one) => one.close())
  const leaseFile = fencesItself ? leaseFilePath(deps.config) : null
  // One that is left of an earlier worker on this folder would have its watchdog kill what runs here now.
  if (leaseFile === null) await rm(leaseFilePath(deps.config), { force: true })
  const lease = leaseFile === null ? null : await openLease(leaseFile)
  const { driver, reason } = await openDriver(deps.config, { ...deps, storage, logs, leaseFile })
  const { report } = await driver.probe()
  printStatus(`sandboxes run with the driver ${report.name} (${reason}): ${report.isolation}`)
  opened.move()
  return { driver, storage, logs, lease }
}

/** Who a worker is, and how it reaches its control plane. */
export type AgentIdentity = {
  readonly worker_id: WorkerId
  /** See `worker/agent/incarnation.ts`. */
  readonly life: string
  readonly controlPlane: ControlPlane
  readonly onSynced?: (answer: SyncAnswer) => void
}

/** Lives as a worker until the signal; rejects when the driver can't work on this machine. Sandboxes go on running. */
export function runWorkerAgent(
  { config, log }: Omit<WorkerHostDeps, 'folder'>,
  { host: { lease, ...host }, identity }: { readonly host: WorkerHost; readonly identity: AgentIdentity },
  signal: AbortSignal,
): Promise<void> {
  return runAgent(
    {
      ...identity,
      ...host,
      ...(lease === null ? { fencesItself: false } : { fencesItself: true, lease }),
      storageSampleMs: config.storageSampleSecs * 1_000,
      filesOf: makeVolumeFilesOpener({ uidShift: UID_SHIFT, random: systemRandom, log }),
      clock: systemClock,
      log,
    },
    signal,
  )
}

/** Makes the demo image where sandboxes can run. May be repeated. */
export async function loadDemoImage({ config, log }: Omit<WorkerHostDeps, 'folder'>, host: WorkerHost): Promise<void> {
  if (host.driver.name !== 'simulated') await ensureDemoImage(await openImages(config, log))
}

/** Ends what runs where the settings say so, says what goes on running otherwise, and lets go of the machine. */
export async function closeWorkerHost(config: Config, { driver, storage, logs, lease }: WorkerHost): Promise<void> {
  if (config.shutdown === 'stop') await stopAllSandboxes(driver, config.stopGraceMs)
  const live = (await driver.list()).filter(({ phase }) => phase === 'running')
  if (live.length > 0) {
    const until = lease === null ? '' : ` within ${String(SELF_FENCE_MS / 1000)} s, after which they are destroyed`
    printStatus(
      `${String(live.length)} sandboxes go on running; the next start takes them over${until} (SANDYARD_SHUTDOWN=stop ends them)`,
    )
  }
  await driver.close()
  await logs.close()
  await storage.close()
}

/** How long the control plane may take to hear of what was stopped, in milliseconds. */
const REPORT_TIMEOUT_MS = 5_000
const REPORT_POLL_MS = 50

/**
 * Ends what runs where the settings say so, and waits until the worker, which must still live, has told the control plane: what
 * it does not hear of, it calls lost.
 */
export async function stopSandboxesAndReport(config: Config, { driver }: Pick<WorkerHost, 'driver'>): Promise<void> {
  if (config.shutdown !== 'stop') return
  await stopAllSandboxes(driver, config.stopGraceMs)
  const deadlineMs = systemClock.monotonicMs() + REPORT_TIMEOUT_MS
  while ((await driver.list()).length > 0 && systemClock.monotonicMs() < deadlineMs)
    await systemClock.sleep(REPORT_POLL_MS)
}

async function stopAllSandboxes(driver: Driver, graceMs: number): Promise<void> {
  const live = (await driver.list()).filter(({ phase }) => phase !== 'ended')
  if (live.length > 0) printStatus(`stopping ${String(live.length)} sandboxes`)
  await Promise.all(live.map(({ run_id }) => driver.stop(run_id, graceMs)))
}

/** How long the first sync may take before the address is told all the same, in milliseconds. */
const FIRST_SYNC_TIMEOUT_MS = 10_000

/** Before the worker's first sync, what ran is told as it was, and what needs an ability of the worker is refused. */
export async function waitForFirstSync(synced: Promise<void>, signal: AbortSignal): Promise<void> {
  const over = new AbortController()
  await Promise.race([
    synced,
    interruptibleSleep(systemClock, FIRST_SYNC_TIMEOUT_MS, AbortSignal.any([signal, over.signal])),
  ])
  over.abort()
}
