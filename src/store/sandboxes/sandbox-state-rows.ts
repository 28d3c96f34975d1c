/** What a transition reads and writes of a sandbox and its run. Only `control/sandboxes/transition.ts` does so, by `sandbox-states.ts`. */
import type { OrgId, RunId, SandboxId, WorkerId } from '../../domain/ids.ts'
import type { CauseCode, SandboxStatus, StatusReason } from '../../domain/sandboxes/lifecycle.ts'
import type { NewEvent } from '../events/events.ts'

/** A sandbox and its open run, locked until the transaction ends. */
export type SandboxStateRow = {
  readonly id: SandboxId
  readonly org_id: OrgId
  readonly name: string
  readonly slug: string
  readonly status: SandboxStatus
  readonly status_reason: StatusReason | null
  readonly ephemeral: boolean
  readonly is_hidden: boolean
  readonly vcpus: number
  readonly memory_mib: number
  /** null: the worker's own size. */
  readonly disk_size_mib: number | null
  readonly max_duration_secs: number | null
  /** The organization's limit on how long one start may run. */
  readonly max_uptime_minutes: number | null
  readonly run_id: RunId | null
  readonly worker_id: WorkerId | null
  /** The latest time recorded for its last runs. */
  readonly latest_at: Date | null
  readonly mounts_volumes: boolean
}

/** What a transition writes to the sandbox; undefined leaves a column unchanged. */
export type SandboxChange = {
  readonly status: SandboxStatus
  readonly status_reason: StatusReason | null
  readonly last_failure_message?: string | null
  readonly started_at?: Date
  readonly stopped_at?: Date | null
  readonly home_worker_id?: WorkerId
  /** The run that a start opens. */
  readonly run_id?: RunId
  /** True deletes the sealed registry credential, which is for a single create-and-start. */
  readonly forget_registry_secret?: boolean
}

/** What one transition writes: the sandbox, its open run if it has one, and the audit event. */
export type TransitionWrite = {
  readonly sandbox: { readonly id: SandboxId; readonly change: SandboxChange }
  readonly run: { readonly id: RunId; readonly change: RunChange } | null
  readonly event: NewEvent
}

/** What a transition writes to the run; undefined leaves a column unchanged. */
export type RunChange = {
  readonly worker_id?: WorkerId
  readonly placed_at?: Date
  /** Since when no worker has had capacity for it. */
  readonly waits_since?: Date
  readonly started_at?: Date
  readonly deadline_at?: Date
  readonly disk_mib?: number
  readonly stop_requested_at?: Date
  readonly stop_cause?: CauseCode
  readonly ended_at?: Date
  readonly outcome?: object
}

/** A run to open. */
export type NewRun = {
  readonly id: RunId
  readonly org_id: OrgId
  readonly sandbox_id: SandboxId
  readonly vcpus: number
  readonly memory_mib: number
  /** null: the worker's own size, known once it runs. */
  readonly disk_size_mib: number | null
  readonly ephemeral: boolean
  readonly opened_at: Date
}
