import { rm } from 'node:fs/promises'
import { interruptibleSleep, systemClock } from '../../lib/clock.ts'
import type { Config } from '../../config.ts'
import type { SyncAnswer } from '../../contract/workers/worker-protocol.ts'
import type { WorkerId } from '../../domain/ids.ts'
import { RENEW_DEADLINE_MS } from '../../domain/workers/lease.ts'
import type { Log } from '../../lib/log.ts'
import { systemRandom } from '../../lib/random.ts'
import { runAgent } from '../../worker/agent/agent.ts'
import type { ControlPlane } from '../../worker/agent/control-plane.ts'
import type { Driver } from '../../worker/drivers/driver.ts'
import { ensureDemoImage } from '../../worker/images/demo.ts'
import { openRenewDeadline, type RenewDeadline } from '../../worker/agent/renew-deadline.ts'
import type { SandboxLogs } from '../../worker/logs/logs.ts'
import { makeVolumeFilesOpener } from '../../worker/volumes/volume-files.ts'
import type { VolumeStorage } from '../../worker/volumes/volume-storage.ts'
import type { DataFolder } from '../server/data-folder.ts'
import { openDriver } from './choose-driver.ts'
import { printStatus } from '../print-status.ts'
import { deadlineFilePath, openImages, openLogs, openVolumes, UID_SHIFT } from './worker-storage.ts'

/** What a worker has open on its machine: the driver that runs sandboxes, their volumes and their logs. */
export type WorkerHost = {
  readonly driver: Driver
  readonly storage: VolumeStorage
  readonly logs: SandboxLogs
  /** Ends the sandboxes when the control plane was out of reach for too long. Null: they run on. */
  readonly renewDeadline: RenewDeadline | null
}

export type WorkerHostDeps = { readonly config: Config; readonly folder: DataFolder; readonly log: Log }

/**
 * Opens the driver, the volumes and the logs of this machine, and prints what they are. Pass `fencesItself: false` only where
 * worker and control plane are one process, so that no other worker could run the same sandboxes. Rejects when no driver
 * works here.
 */
export async function openWorkerHost(
  deps: WorkerHostDeps,
  { fencesItself }: { readonly fencesItself: boolean },
): Promise<WorkerHost> {
  await using opened = new AsyncDisposableStack()
  const storage = opened.adopt(await openVolumes(deps.config, deps.log), (one) => one.close())
  printStatus(`volumes: ${storage.report.how}`)
  const logs = opened.adopt(await openLogs(deps.config, deps.log), (one) => one.close())
  const deadlineFile = fencesItself ? deadlineFilePath(deps.config) : null
  // The watchdog of an earlier worker on this folder would read an old deadline and kill the sandboxes that run now.
  if (deadlineFile === null) await rm(deadlineFilePath(deps.config), { force: true })
  const renewDeadline = deadlineFile === null ? null : await openRenewDeadline(deadlineFile)
  const { driver, reason } = await openDriver(deps.config, { ...deps, storage, logs, deadlineFile })
  const { report } = await driver.probe()
  printStatus(`sandboxes run with the driver ${report.name} (${reason}): ${report.isolation}`)
  opened.move()
  return { driver, storage, logs, renewDeadline }
}

/** Who a worker is, and how it reaches its control plane. */
export type AgentIdentity = {
  readonly worker_id: WorkerId
  /** See `worker/agent/incarnation.ts`. */
  readonly incarnation: string
  readonly controlPlane: ControlPlane
  readonly onSynced?: (answer: SyncAnswer) => void
}

/** Runs the worker's agent until the signal. Sandboxes keep running after it. Rejects when the driver fails for good. */
export function runWorkerAgent(
  { config, log }: Omit<WorkerHostDeps, 'folder'>,
  { host: { renewDeadline, ...host }, identity }: { readonly host: WorkerHost; readonly identity: AgentIdentity },
  signal: AbortSignal,
): Promise<void> {
  return runAgent(
    {
      ...identity,
      ...host,
      ...(renewDeadline === null ? { fencesItself: false } : { fencesItself: true, renewDeadline }),
      storageSampleMs: config.storageSampleSecs * 1_000,
      filesOf: makeVolumeFilesOpener({ uidShift: UID_SHIFT, random: systemRandom, log }),
      clock: systemClock,
      log,
    },
    signal,
  )
}

/** Creates the demo image if it is missing, unless the driver is the simulated one. May be repeated. */
export async function loadDemoImage({ config, log }: Omit<WorkerHostDeps, 'folder'>, host: WorkerHost): Promise<void> {
  if (host.driver.name !== 'simulated') await ensureDemoImage(await openImages(config, log))
}

/** Stops the sandboxes if SANDYARD_SHUTDOWN says so, prints how many keep running otherwise, and closes the rest. */
export async function closeWorkerHost(
  config: Config,
  { driver, storage, logs, renewDeadline }: WorkerHost,
): Promise<void> {
  if (config.shutdown === 'stop') await stopAllSandboxes(driver, config.stopGraceMs)
  const live = (await driver.list()).filter(({ phase }) => phase === 'running')
  if (live.length > 0) {
    const until =
      renewDeadline === null ? '' : ` within ${String(RENEW_DEADLINE_MS / 1000)} s, after which they are destroyed`
    printStatus(
      `${String(live.length)} sandboxes keep running; the next start takes them over${until} (SANDYARD_SHUTDOWN=stop stops them)`,
    )
  }
  await driver.close()
  await logs.close()
  await storage.close()
}

/** The most time for the agent to report the stopped sandboxes. */
const REPORT_TIMEOUT_MS = 5_000
const REPORT_POLL_MS = 50

/**
 * Stops the sandboxes if SANDYARD_SHUTDOWN says so, then waits until the agent, which must still run, has reported them. The
 * control plane marks runs that nobody reports as lost.
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

/** The most time for the first sync. After it, the API's URL is printed anyway. */
const FIRST_SYNC_TIMEOUT_MS = 10_000

/** Waits for the worker's first sync. Before it, the API shows old states and refuses requests that need a worker's ability. */
export async function waitForFirstSync(synced: Promise<void>, signal: AbortSignal): Promise<void> {
  const over = new AbortController()
  await Promise.race([
    synced,
    interruptibleSleep(systemClock, FIRST_SYNC_TIMEOUT_MS, AbortSignal.any([signal, over.signal])),
  ])
  over.abort()
}
