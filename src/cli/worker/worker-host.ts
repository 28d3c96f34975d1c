import { rm } from 'node:fs/promises'
import type { Registry } from 'prom-client'
import { systemClock, waitAtMost } from '../../lib/clock.ts'
import type { Config } from '../../config.ts'
import type { Capacity } from '../../domain/workers/worker.ts'
import { describePublishing } from '../../domain/workers/publishing.ts'
import { ISOLATION_LEVELS, isolationOf, type IsolationLevel } from '../../domain/isolation.ts'
import { RENEW_DEADLINE_MS } from '../../domain/workers/lease.ts'
import type { Log } from '../../lib/log.ts'
import { systemRandom } from '../../lib/random.ts'
import { runAgent } from '../../worker/agent/agent.ts'
import type { AgentDeps } from '../../worker/agent/agent-state.ts'
import { NO_DISK_RESERVE } from '../../worker/disk-reserve.ts'
import type { Driver } from '../../worker/drivers/driver.ts'
import type { OpenSnapshotFiles } from '../../worker/images/fetch-snapshot.ts'
import { ensureDemoImage } from '../../worker/images/demo.ts'
import { openRenewDeadline, type RenewDeadline } from '../../worker/agent/renew-deadline.ts'
import type { SandboxLogs } from '../../worker/logs/logs.ts'
import type { SandboxMetrics } from '../../worker/metrics/sandbox-metrics.ts'
import { makeOpenFolderFiles } from '../../worker/volumes/open-folder-files.ts'
import { makeAlignedBuffers } from '../../worker/volumes/content-writer.ts'
import { makeVolumeFilesOpener } from '../../worker/volumes/volume-files.ts'
import type { VolumeStorage } from '../../worker/volumes/volume-storage.ts'
import { removeLeftovers } from './backup-leftovers.ts'
import type { DataFolder } from '../server/data-folder.ts'
import { addMachineMetrics, makePullMetrics } from '../metrics/machine-metrics.ts'
import { addSandboxMetrics } from '../metrics/sandbox-series.ts'
import { openDriver } from './choose-driver.ts'
import { describeCapacity, readMachine } from './describe-capacity.ts'
import { printStatus } from '../print-status.ts'
import { openServedStore } from './open-image-registry.ts'
import { openOwnRanges } from './open-own-ranges.ts'
import {
  deadlineFilePath,
  diskReserve,
  openImages,
  openLogs,
  openMetrics,
  openVolumes,
  readImageBytes,
  UID_SHIFT,
} from './worker-storage.ts'

/** The open resources of a worker on its machine: the driver that runs sandboxes, the volume storage and the logs. */
export type WorkerHost = {
  readonly driver: Driver
  readonly storage: VolumeStorage
  readonly logs: SandboxLogs
  readonly metrics: SandboxMetrics
  /**
   * The deadline at which the sandboxes are destroyed unless a sync succeeds. Null if sandboxes keep running while the
   * control plane is unreachable.
   */
  readonly renewDeadline: RenewDeadline | null
  /** What only the control plane reaches. `runWorkerAgent` sets it. */
  readonly peers: { openSnapshotFiles: OpenSnapshotFiles | null }
}

export type WorkerHostDeps = {
  readonly config: Config
  readonly folder: Pick<DataFolder, 'path' | 'namePrefix'>
  readonly log: Log
}

/**
 * Opens the driver, the volume storage and the logs of this machine, and prints which driver and storage are used. Pass
 * `fencesItself: false` only for the worker of `up`, which reports that its runs outlive it: nobody starts them elsewhere meanwhile.
 * `metrics` gets the metrics of the machine. Rejects when no driver works on this machine.
 */
export async function openWorkerHost(
  deps: WorkerHostDeps,
  { fencesItself: mayFence, metrics }: { readonly fencesItself: boolean; readonly metrics: Registry },
): Promise<WorkerHost> {
  // Pods go on without their worker, and the control plane declares none of them lost meanwhile.
  const fencesItself = mayFence && deps.config.driver !== 'kubernetes'
  await using opened = new AsyncDisposableStack()
  const storage = opened.adopt(await openVolumes(deps.config, deps.folder, deps.log), (one) => one.close())
  await removeLeftovers(deps.config, deps)
  const logs = opened.adopt(await openLogs(deps.config, deps.log), (one) => one.close())
  const sandboxMetrics = opened.adopt(await openMetrics(deps.config, deps.log), (one) => one.close())
  const deadlineFile = fencesItself ? deadlineFilePath(deps.config) : null
  // An earlier worker's watchdog may still run. It would read the old deadline and kill the sandboxes that run now.
  if (deadlineFile === null) await rm(deadlineFilePath(deps.config), { force: true })
  const renewDeadline = deadlineFile === null ? null : await openRenewDeadline(deadlineFile)
  const ownRanges = await openOwnRanges(deps.config, deps.log)
  const peers: WorkerHost['peers'] = { openSnapshotFiles: null }
  const { driver, reason } = await openDriver(deps.config, {
    ...deps,
    storage,
    logs,
    metrics: sandboxMetrics,
    deadlineFile,
    ownRanges,
    openSnapshotFiles: () => peers.openSnapshotFiles,
    countPulls: makePullMetrics(metrics, systemClock),
  })
  opened.adopt(driver, (one) => one.close())
  if (driver.volumes !== undefined && (await storage.measure()).length > 0)
    throw new Error(
      `${storage.root} has volumes, and this driver keeps volumes elsewhere: it would show empty ones instead`,
    )
  printStatus(`volumes: ${(driver.volumes ?? storage).report.how}`)
  const { report, capacity } = await driver.probe()
  const level = isolationOf(report.abilities)
  requireIsolation(level, deps.config)
  printStatus(`sandboxes run with the driver ${report.name} (${reason}): ${report.isolation}`)
  printStatus(`isolation level: ${level ?? 'none'} (container < gvisor < microvm; docs/drivers.md)`)
  if (driver.name === 'kubernetes')
    printStatus(
      `capacity: ${String(capacity.vcpus)} vCPUs and ${String(capacity.memory_mib)} MiB of memory in the cluster`,
    )
  else if (driver.name !== 'simulated') printStatus(`capacity: ${describeOffer(deps.config, capacity)}`)
  if (report.publishes !== undefined) printStatus(`ports: ${describePublishing(report.publishes)}`)
  addMachineMetrics(metrics, {
    driver,
    storage,
    readImageBytes: () => readImageBytes(deps.config),
    clock: systemClock,
    log: deps.log,
  })
  if (deps.config.metricsSandboxes > 0) addSandboxMetrics(metrics, sandboxMetrics, deps.config.metricsSandboxes)
  opened.move()
  return { driver, storage, logs, metrics: sandboxMetrics, renewDeadline, peers }
}

/** Describes the capacity that the driver offers. That of the simulated driver has nothing to do with the machine. */
function describeOffer(config: Config, capacity: Capacity): string {
  const machine = readMachine(config.hostReserveMib)
  return describeCapacity(capacity, { machine, defaultDiskMib: config.diskMib })
}

/** Throws if the driver isolates sandboxes less than the operator demands. */
function requireIsolation(
  level: IsolationLevel | null,
  { requireIsolation: demanded }: Pick<Config, 'requireIsolation'>,
): void {
  if (demanded === null) return
  if (level !== null && ISOLATION_LEVELS.indexOf(level) >= ISOLATION_LEVELS.indexOf(demanded)) return
  throw new Error(
    `SANDYARD_REQUIRE_ISOLATION is ${demanded}, and the sandboxes of this machine would have the isolation ${level ?? 'none'}; ` +
      '`sandyard doctor` shows what a stronger driver needs',
  )
}

/** The identity of a worker, and its connection to the control plane. */
export type AgentIdentity = Pick<
  AgentDeps,
  'worker_id' | 'incarnation' | 'controlPlane' | 'leaving' | 'onLeavingRecorded' | 'onSynced'
>

/**
 * Runs the worker's agent until the signal aborts. Sandboxes keep running afterwards. Rejects when the driver fails
 * permanently.
 */
export function runWorkerAgent(
  { config, log }: Omit<WorkerHostDeps, 'folder'>,
  {
    host: { renewDeadline, peers, ...host },
    identity,
  }: { readonly host: WorkerHost; readonly identity: AgentIdentity },
  signal: AbortSignal,
): Promise<void> {
  const filesOf = makeVolumeFilesOpener({
    uidShift: UID_SHIFT,
    random: systemRandom,
    // Shared volumes lie on another file system.
    reserve: config.sharedVolumesDir === null ? diskReserve(config) : NO_DISK_RESERVE,
    ...(host.storage.hasDirectWrites ? { buffers: makeAlignedBuffers() } : {}),
    log,
  })
  const openFolderFiles = makeOpenFolderFiles(host.storage, filesOf)
  peers.openSnapshotFiles = (snapshot, of) => identity.controlPlane.fetchSnapshot(snapshot, of)
  return runAgent(
    {
      ...identity,
      ...host,
      ...(renewDeadline === null ? { fencesItself: false } : { fencesItself: true, renewDeadline }),
      diskReserve: diskReserve(config),
      storageSampleMs: config.storageSampleSecs * 1_000,
      storage: host.driver.volumes ?? host.storage,
      openFiles: host.driver.volumes?.openFiles ?? openFolderFiles,
      clock: systemClock,
      log,
    },
    signal,
  )
}

/** Creates the demo image if it is missing and the driver uses images of this machine. May be repeated. */
export async function loadDemoImage({ config, log }: Omit<WorkerHostDeps, 'folder'>, host: WorkerHost): Promise<void> {
  if (host.driver.name === 'simulated') return
  if (host.driver.name !== 'kubernetes') await ensureDemoImage(await openImages(config, log))
  else if (config.kubernetesRegistry !== null) await ensureDemoImage(await openServedStore(config, log))
}

/**
 * Closes the driver, the volume storage and the logs. Unless SANDYARD_SHUTDOWN is `keep`, it stops the sandboxes first. Otherwise
 * it prints how many sandboxes keep running.
 */
export async function closeWorkerHost(
  config: Config,
  { driver, storage, logs, metrics, renewDeadline }: WorkerHost,
): Promise<void> {
  if (config.shutdown !== 'keep') await stopAllSandboxes(driver, config.stopGraceMs)
  const live = (await driver.list()).filter(({ phase }) => phase === 'running')
  if (live.length > 0) {
    const until =
      renewDeadline === null ? '' : ` within ${String(RENEW_DEADLINE_MS / 1000)} s, after which they are destroyed`
    printStatus(
      `${String(live.length)} sandboxes keep running; the next start takes them over${until} (SANDYARD_SHUTDOWN=stop stops them)`,
    )
  }
  await driver.close()
  await metrics.close()
  await logs.close()
  await storage.close()
}

/** How long a shutdown waits for the control plane to record a report. */
const REPORT_TIMEOUT_MS = 5_000
const REPORT_POLL_MS = 50

/**
 * Unless SANDYARD_SHUTDOWN is `keep`, stops the sandboxes and waits until the agent has reported them. The agent must still run.
 * The control plane marks a run as lost if no worker reports it.
 */
export async function stopSandboxesAndReport(config: Config, { driver }: Pick<WorkerHost, 'driver'>): Promise<void> {
  if (config.shutdown === 'keep') return
  await stopAllSandboxes(driver, config.stopGraceMs)
  const deadlineMs = systemClock.monotonicMs() + REPORT_TIMEOUT_MS
  while ((await driver.list()).length > 0 && systemClock.monotonicMs() < deadlineMs)
    await systemClock.sleep(REPORT_POLL_MS)
}

/**
 * If SANDYARD_SHUTDOWN is `drain`, waits until no sandbox runs here, at most for SANDYARD_DRAIN_SECS. The worker must take no new
 * ones. `leavingRecorded` resolves when the control plane knows that. If it can't be reached, this function doesn't wait for it.
 */
export async function waitForSandboxes(
  config: Config,
  { driver }: Pick<WorkerHost, 'driver'>,
  leavingRecorded: Promise<void>,
): Promise<void> {
  if (config.shutdown !== 'drain') return
  const deadlineMs = systemClock.monotonicMs() + config.drainSecs * 1_000
  await waitAtMost(systemClock, REPORT_TIMEOUT_MS, leavingRecorded)
  for (let printed = 0; systemClock.monotonicMs() < deadlineMs;) {
    const live = (await driver.list()).filter(({ phase }) => phase !== 'ended').length
    if (live === 0) return
    if (live !== printed) printStatus(`draining: ${String(live)} sandboxes still run; no new ones are placed here`)
    printed = live
    await systemClock.sleep(DRAIN_POLL_MS)
  }
}

const DRAIN_POLL_MS = 250

async function stopAllSandboxes(driver: Driver, graceMs: number): Promise<void> {
  const live = (await driver.list()).filter(({ phase }) => phase !== 'ended')
  if (live.length > 0) printStatus(`stopping ${String(live.length)} sandboxes`)
  await Promise.all(live.map(({ run_id }) => driver.stop(run_id, graceMs)))
}

/**
 * How long to wait for the first sync, in milliseconds. After this time, the API's URL is printed even without a sync.
 */
const FIRST_SYNC_TIMEOUT_MS = 10_000

/**
 * Waits for the worker's first sync. Before it, the API shows the states of sandboxes from before the start, and
 * refuses requests that need an ability of a worker.
 */
export async function waitForFirstSync(synced: Promise<void>, signal: AbortSignal): Promise<void> {
  await waitAtMost(systemClock, FIRST_SYNC_TIMEOUT_MS, synced, signal)
}
