/** The types of a worker's agent: its dependencies, its parts, and the state that changes while it runs. */
import type { VolumeFiles } from '../../contract/volumes/volume-protocol.ts'
import type { DesiredRun, DesiredVolume, ObservedRun, SyncAnswer } from '../../contract/workers/worker-protocol.ts'
import type { RunId, SandboxId, WorkerId } from '../../domain/ids.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { Driver, Probe } from '../drivers/driver.ts'
import type { SandboxLogs } from '../logs/logs.ts'
import type { SandboxMetrics } from '../metrics/sandbox-metrics.ts'
import type { WorkerVolumes } from '../volumes/volume-storage.ts'
import type { ControlPlane } from './control-plane.ts'
import type { DiskReserve } from '../disk-reserve.ts'
import type { DiskGuard } from './disk-guard.ts'
import type { Fence } from './fence.ts'
import type { RenewDeadline } from './renew-deadline.ts'
import type { StartReports } from './start-reports.ts'
import type { Steps } from './steps.ts'
import type { VolumeReconciler } from './volume-reconciler.ts'

export type AgentDeps = {
  readonly worker_id: WorkerId
  /** The UUID of this process of the worker. See `incarnation.ts`. */
  readonly incarnation: string
  readonly driver: Driver
  readonly storage: WorkerVolumes
  /** How often the use of volumes is measured, in milliseconds. */
  readonly storageSampleMs: number
  /** Opens the files of a volume, and creates the volume if it is missing. */
  readonly openFiles: (volume: DesiredVolume) => Promise<VolumeFiles>
  readonly logs: Pick<SandboxLogs, 'read' | 'discard'>
  readonly metrics: Pick<SandboxMetrics, 'read' | 'subscribe' | 'latest' | 'discard'>
  readonly controlPlane: ControlPlane
  /** The reserve of the file system to watch. Absent: none is watched. */
  readonly diskReserve?: Pick<DiskReserve, 'measure'>
  readonly clock: Clock
  readonly log: Log
  /**
   * Whether the worker destroys its runs if it can't sync for too long. False if its runs outlive it: for the worker of
   * `up`, and for Pods.
   */
  readonly fencesItself: boolean
  /**
   * The deadline after which the worker destroys its runs. If absent, the agent creates one that exists only in this process.
   */
  readonly renewDeadline?: RenewDeadline
  /** Aborted when the worker is to take no new runs. It then offers no capacity. Absent: it never leaves. */
  readonly leaving?: AbortSignal
  /** Called once the control plane has recorded that this worker takes no new runs. May be called again. */
  readonly onLeavingRecorded?: () => void
  /** Called with the answer to each sync. From the first call on, the control plane knows which runs this worker has. */
  readonly onSynced?: (answer: SyncAnswer) => void
}

/** The state of an agent, which changes while the agent runs. */
export type AgentState = {
  /** The machine's capacity and the driver's abilities, as of the last probe. */
  probe: Probe
  /** The number of the report that was sent last. */
  seq: number
  /** The number of the latest report whose answer was applied. Answers to earlier reports are ignored. */
  appliedSeq: number
  /** The syncs that are still waiting for their answer, by the number of their report. */
  readonly inFlight: Map<number, AbortController>
  /** Whether there is something new to report. */
  hasNews: boolean
  /** Aborting it ends the pause between two syncs. */
  pause: AbortController
  reportMemory: ReportMemory
  readonly startReports: StartReports
  /** The runs that the control plane desires. Null before the first answer; until then, the agent removes nothing. */
  desiredRuns: readonly DesiredRun[] | null
  /** Runs that the control plane desires too, and that a later answer brings. Those that the driver has are left as they are. */
  laterRuns: ReadonlySet<RunId>
  /** The version of `desiredRuns`. Null: the next answer must have all runs. */
  desiredVersion: string | null
  /** The answer that changed the desired runs last: who made it, and the number of the last report that was made before. */
  desiredBy: { readonly answered_by: string | undefined; readonly sentSeq: number }
  /** Started runs that the fence destroyed, as they are reported while the control plane still desires them. */
  readonly destroyedRuns: Map<RunId, ObservedRun>
  isReconciling: boolean
  mustReconcile: boolean
  /** Deleted sandboxes whose writable layer and log this worker must still delete. Taken from the last answer. */
  discards: readonly SandboxId[]
  /** Aborted when all `discards` are done or a new list replaces them. This ends every wait for them. */
  discardsDone: AbortController
  /** Tickets that this worker has dialled, and that the control plane may not have closed yet. */
  readonly dialledTickets: Set<string>
}

/**
 * What an agent remembers about its newest report content, so that an unchanged report can be sent as a heartbeat.
 * Several successive reports may have had this content.
 */
export type ReportMemory = {
  content: string | null
  /** The number of the first report with this content. */
  sinceSeq: number
  /** The generation in the last answer to one of these reports, or null. */
  generation: number | null
  /** When a report was last sent without a generation, so that the control plane reads it whole. */
  wholeAtMs: number
}

/** An agent: its dependencies, its parts and its state. When `signal` aborts, the agent ends. */
export type Agent = {
  readonly deps: AgentDeps
  readonly signal: AbortSignal
  readonly renewDeadline: RenewDeadline
  readonly fence: Fence
  readonly steps: Steps
  readonly volumes: VolumeReconciler
  readonly diskGuard: DiskGuard
  readonly state: AgentState
}
