/** What a worker's agent is made of: what it is given, and what changes while it runs. */
import type { VolumeFiles } from '../../contract/volumes/volume-protocol.ts'
import type { DesiredRun, SyncAnswer } from '../../contract/workers/worker-protocol.ts'
import type { SandboxId, WorkerId } from '../../domain/ids.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { Driver, Probe } from '../drivers/driver.ts'
import type { SandboxLogs } from '../logs/logs.ts'
import type { VolumeStorage } from '../volumes/volume-storage.ts'
import type { ControlPlane } from './control-plane.ts'
import type { Fence } from './fence.ts'
import type { RenewDeadline } from './renew-deadline.ts'
import type { Steps } from './steps.ts'
import type { VolumeReconciler } from './volume-reconciler.ts'

export type AgentDeps = {
  readonly worker_id: WorkerId
  /** See `incarnation.ts`. */
  readonly incarnation: string
  readonly driver: Driver
  readonly storage: VolumeStorage
  /** How often what volumes use is measured, in milliseconds. */
  readonly storageSampleMs: number
  /** The files of a volume by its folder on this machine. */
  readonly filesOf: (root: string) => VolumeFiles
  readonly logs: Pick<SandboxLogs, 'read' | 'discard'>
  readonly controlPlane: ControlPlane
  readonly clock: Clock
  readonly log: Log
  /** Whether a worker that can't sync destroys its runs. Off only where control plane and worker are one process. */
  readonly fencesItself: boolean
  /** When it does so. Absent: a deadline that only this process knows. */
  readonly renewDeadline?: RenewDeadline
  /** Called after each sync that was answered, with its answer: from the first on, the control plane knows what runs here. */
  readonly onSynced?: (answer: SyncAnswer) => void
}

/** What changes while an agent runs. */
export type AgentState = {
  /** What this machine can run, as of the last probe. */
  probe: Probe
  /** The number of the last report. */
  seq: number
  /** The number of the latest report whose answer was applied. Earlier ones, that come later, are not. */
  appliedSeq: number
  /** Syncs that are not answered yet, by the number of their report. */
  readonly inFlight: Map<number, AbortController>
  /** Whether a report would say something new. */
  hasNews: boolean
  /** Ends the pause of the sync loop. */
  pause: AbortController
  reportMemory: ReportMemory
  /** Null before the first answer: until then nothing is removed. */
  desiredRuns: readonly DesiredRun[] | null
  desiredVersion: string | null
  isReconciling: boolean
  mustReconcile: boolean
  /** Sandboxes that are gone and whose writable layers are to be deleted, by the last answer. */
  discards: readonly SandboxId[]
  /** Ends the wait for them. */
  discardsDone: AbortController
  /** Tickets that were dialled and may still be open. */
  readonly dialledTickets: Set<string>
}

/** What an agent remembers about the reports that it sent last, all of the same content. */
export type ReportMemory = {
  content: string | null
  /** The number of the first of them. */
  sinceSeq: number
  /** The generation of the last answer to one of them, or null. */
  generation: number | null
  /** When such a report was last sent to be read whole. */
  wholeAtMs: number
}

/** An agent: what it was given, what it is made of, and its state. `signal` ends it. */
export type Agent = {
  readonly deps: AgentDeps
  readonly signal: AbortSignal
  readonly renewDeadline: RenewDeadline
  readonly fence: Fence
  readonly steps: Steps
  readonly volumes: VolumeReconciler
  readonly state: AgentState
}
