import type { OrgId, RunId, SandboxId, WorkerId } from '../domain/ids.ts'
import type { Ability } from '../domain/abilities.ts'
import type { SandboxSpec } from '../domain/spec.ts'

/**
 * The conversation between a worker and the control plane: `POST /worker/v1/sync`, a long poll. The worker says all
 * that it sees; the control plane answers with all that it wants. Either side may repeat a message: both are whole
 * pictures, and every run carries its identifier as fencing token.
 */
export const WORKER_PROTOCOL_VERSION = 1

/** How long a worker may go without a sync before its runs are called lost, in milliseconds. */
export const WORKER_LEASE_MS = 30_000
/** When a worker that can't sync destroys its runs: early enough to be done before the lease ends. */
export const SELF_FENCE_MS = 20_000
/** How long the control plane holds a sync that has nothing new to say. */
export const SYNC_HOLD_MS = 8_000

export type SyncRequest = {
  readonly protocol: number
  readonly worker_id: WorkerId
  /** Counts up within one life of the worker; a later one releases an earlier one that is still held. */
  readonly seq: number
  /** The `wanted_version` of the last answer that the worker holds, or null: an equal one is not sent again. */
  readonly known_version: string | null
  readonly capacity: Capacity
  readonly driver: DriverReport
  readonly seen: readonly SeenRun[]
  /** Sandboxes whose writable layer lies on this worker, whether or not they run. */
  readonly stored: readonly SandboxId[]
}

export type SyncAnswer = {
  readonly wanted_version: string
  /** null: as in `known_version`. */
  readonly wanted: readonly WantedRun[] | null
  /** Of the `stored` ones, those whose sandbox is gone: their writable layers are to be deleted. */
  readonly discard: readonly SandboxId[]
  /** Streams that the worker is to dial: `GET /worker/v1/streams/{ticket}` with a WebSocket upgrade. */
  readonly streams: readonly StreamTicket[]
}

export type StreamTicket = { readonly ticket: string; readonly run_id: RunId; readonly kind: 'agent' }

/** What the worker can give to sandboxes in all, running ones included. */
export type Capacity = { readonly vcpus: number; readonly memory_mib: number; readonly disk_mib: number }

export type DriverReport = {
  readonly name: string
  /** Such as `crun 1.8.1, user namespace, seccomp`. Shown to people. */
  readonly isolation: string
  readonly abilities: readonly Ability[]
  /** References of the images that need no pull. */
  readonly images: readonly string[]
}

/** A run as the driver itself reports it. */
export type SeenRun = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly phase: SeenPhase
  /** Present when `phase` is `ended`. */
  readonly outcome?: Outcome
  /** True once the sandbox was idle for its whole idle timeout. */
  readonly is_idle_expired?: boolean
  /** Facts for the sandbox's events, such as the image's digest and the isolation in force. */
  readonly facts?: Readonly<Record<string, string>>
}
export const SEEN_PHASES = ['starting', 'running', 'stopping', 'ended'] as const
export type SeenPhase = (typeof SEEN_PHASES)[number]

/** How a run ended. `message` is for people and carries no secret. */
export type Outcome =
  | { readonly kind: 'exited'; readonly code: number }
  | { readonly kind: 'signalled'; readonly signal: string }
  | { readonly kind: 'out_of_memory' }
  | { readonly kind: 'stopped' }
  | { readonly kind: 'start_failed'; readonly reason: StartFailure; readonly message: string }
  | { readonly kind: 'lost'; readonly message: string }

/** The closed set of kinds of error that a driver's start may fail with. */
export const START_FAILURES = ['image', 'registry', 'patch', 'mount', 'config', 'network', 'disk', 'runtime', 'host', 'cancelled'] as const
export type StartFailure = (typeof START_FAILURES)[number]

/** A run that the control plane wants on this worker. */
export type WantedRun = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly org_id: OrgId
  readonly slug: string
  readonly desired: 'running' | 'stopped'
  /** From SIGTERM to SIGKILL, in milliseconds. */
  readonly grace_ms: number
  readonly spec: SandboxSpec
  /** The credential to present to the image's registry; null: none. Never logged. */
  readonly registry_auth: { readonly username: string; readonly password: string } | null
}
