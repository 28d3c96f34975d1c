/**
 * The rows of a sandbox and its run that a transition reads and writes. Only `control/sandboxes/transition.ts` uses
 * them, through `sandbox-states.ts`.
 */
import type { OrgId, RunId, SandboxId, WorkerId } from '../../domain/ids.ts'
import type { IsolationLevel } from '../../domain/isolation.ts'
import type { CauseCode, SandboxStatus, StatusReason } from '../../domain/sandboxes/lifecycle.ts'
import type { PublishedPort } from '../../domain/spec/published-ports.ts'
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
  /** Null: the worker's default size. */
  readonly disk_size_mib: number | null
  /** The worker that stores the sandbox's disk. */
  readonly home_worker_id: WorkerId | null
  readonly max_duration_secs: number | null
  /** The organization's limit on the duration of one run, in minutes. */
  readonly max_uptime_minutes: number | null
  /** The latest run, whether it is open or has ended. */
  readonly latest_run_id: RunId | null
  readonly run_id: RunId | null
  readonly worker_id: WorkerId | null
  /** When the open run was requested. */
  readonly opened_at: Date | null
  /** When the open run got its worker. */
  readonly placed_at: Date | null
  /** The span of the request that opened the run, as a `traceparent`. Null: it is not traced. */
  readonly trace_parent: string | null
  /** When the open run started. */
  readonly started_at: Date | null
  /** Why the open run was asked to stop. */
  readonly stop_cause: CauseCode | null
  /** The latest time that is recorded for the sandbox's last runs. */
  readonly latest_at: Date | null
  readonly mounts_volumes: boolean
  /** The value of the label `sandyard.restart`. */
  readonly restart_policy: string | null
  /** When the restart policy starts another run. Null: it doesn't. */
  readonly restart_at: Date | null
  /** How many restarts in a row led to the latest run. */
  readonly restart_count: number
}

/** The columns of a sandbox that a transition writes. A column that is undefined stays unchanged. */
export type SandboxChange = {
  readonly status: SandboxStatus
  readonly status_reason: StatusReason | null
  readonly last_failure_message?: string | null
  readonly started_at?: Date
  readonly stopped_at?: Date | null
  readonly home_worker_id?: WorkerId
  /** The run that a start creates. It also removes the isolation of the previous run. */
  readonly run_id?: RunId
  readonly isolation?: IsolationLevel
  /** Each transition writes it: only the end of a run sets it. */
  readonly restart_at: Date | null
  readonly restart_count?: number
  /**
   * True deletes the sealed registry password that came with the create request. It serves only the start that the same
   * request asks for.
   */
  readonly forget_registry_secret?: boolean
}

/** The rows that one transition writes: the sandbox, its open run if it has one, and the audit event. */
export type TransitionWrite = {
  readonly sandbox: { readonly id: SandboxId; readonly change: SandboxChange }
  readonly run: { readonly id: RunId; readonly change: RunChange } | null
  readonly event: NewEvent
}

/** The columns of a run that a transition writes. A column that is undefined stays unchanged. */
export type RunChange = {
  readonly worker_id?: WorkerId
  readonly placed_at?: Date
  /** The time since which no worker has had capacity for the run. */
  readonly waits_since?: Date
  readonly started_at?: Date
  readonly deadline_at?: Date
  readonly disk_mib?: number
  /** The ports that the run publishes on its worker. */
  readonly ports?: readonly PublishedPort[]
  readonly stop_requested_at?: Date
  readonly stop_cause?: CauseCode
  readonly ended_at?: Date
  readonly outcome?: object
}

/** A run to create. */
export type NewRun = {
  readonly id: RunId
  readonly org_id: OrgId
  readonly sandbox_id: SandboxId
  readonly vcpus: number
  readonly memory_mib: number
  /** Null: the worker's default size, which is known once the run has started. */
  readonly disk_size_mib: number | null
  readonly ephemeral: boolean
  readonly opened_at: Date
  readonly trace_parent: string | null
}
