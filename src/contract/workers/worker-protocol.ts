import type { LogQuery } from '../streams/log-protocol.ts'
import type { OrgId, RunId, SandboxId, VolumeId, WorkerId } from '../../domain/ids.ts'
import type { RunOutcome } from '../../domain/sandboxes/run.ts'
import type { Capacity, DriverReport, StorageReport } from '../../domain/workers/worker.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'

export type { RunOutcome, StartFailure } from '../../domain/sandboxes/run.ts'
export type { Capacity, DriverReport, StorageReport } from '../../domain/workers/worker.ts'

/**
 * The protocol between a worker and the control plane: `POST /worker/v1/sync`, a long poll. The worker reports all that it
 * observes; the answer says all that is desired of it. Both are complete states, so either side may repeat a message. The
 * id of a run is its fencing token.
 */
export const WORKER_PROTOCOL_VERSION = 4

/**
 * A machine becomes a worker here: it makes a credential, keeps it, and sends its SHA-256 with a join token. It may repeat
 * the same request until it is answered.
 */
export const JOIN_PATH = '/worker/v1/join'

export type JoinRequest = {
  readonly protocol: number
  readonly token: string
  /** In hexadecimal digits. */
  readonly credential_sha256: string
  /** The name that the operator chose; null: the token's, or else `fallback_name`. */
  readonly name: string | null
  readonly fallback_name: string
}

export type JoinAnswer = { readonly worker_id: WorkerId; readonly name: string }

/**
 * How long the control plane holds a sync while there is nothing new to answer, in milliseconds. The head of the answer comes
 * as soon as the report is recorded. From then on the worker knows that its lease was prolonged.
 */
export const SYNC_HOLD_MS = 8_000

export type SyncRequest = {
  readonly protocol: number
  readonly worker_id: WorkerId
  /** A UUIDv7 of this process of the worker, greater than those of its earlier processes: see `ReportPosition`. */
  readonly incarnation: string
  /**
   * Counts up from 1 within an incarnation, in the order in which the worker observed. A later sync releases an earlier one
   * that is held. A report that was overtaken on its way changes nothing.
   */
  readonly seq: number
  /**
   * The `generation` of the last answer, if this report differs only in `seq` from the one that was answered, and from all
   * between; otherwise null. The control plane need not read the report then, while that is the current generation.
   */
  readonly known_generation: number | null
  /** The `desired_version` of the last answer that the worker applied, or null. Runs of that version are not sent again. */
  readonly known_desired_version: string | null
  readonly capacity: Capacity
  readonly driver: DriverReport
  readonly observed_runs: readonly ObservedRun[]
  /** Sandboxes whose writable layer is stored on this worker, whether or not they run. */
  readonly stored_sandboxes: readonly SandboxId[]
  /** Open tickets that the worker has dialled: they are no news to it. */
  readonly dialled_tickets: readonly string[]
  readonly storage: StorageReport
  /** How much each volume that is stored here uses; null: as in the last report that was answered. */
  readonly volumes: readonly StoredVolume[] | null
  /** The `volumes_version` of the last answer that the worker applied, or null. */
  readonly known_volumes_version: string | null
}

export type StoredVolume = { readonly org_id: OrgId; readonly volume_id: VolumeId; readonly used_bytes: number }

/** A volume with the caps to enforce, in bytes; null: no cap. */
export type DesiredVolume = {
  readonly org_id: OrgId
  readonly volume_id: VolumeId
  readonly capacity_bytes: number | null
  /** What all volumes of the organization together may use. */
  readonly org_capacity_bytes: number | null
}

/** A volume that a run mounts: the host volume of its organization, or one by its name. */
export type RunVolume = DesiredVolume & { readonly kind: 'host' | 'managed'; readonly name: string | null }

export type SyncAnswer = {
  /**
   * The worker's generation: the control plane raises it whenever something changes that the worker must hear. Null when
   * the next report must be read whole, because of what this answer says or what the report changed.
   */
  readonly generation: number | null
  readonly desired_version: string
  /** null: as in `known_desired_version`. */
  readonly desired_runs: readonly DesiredRun[] | null
  /** Those of `stored_sandboxes` that were deleted: the worker deletes their writable layers. */
  readonly discard_sandboxes: readonly SandboxId[]
  /** Streams that the worker must dial: `GET /worker/v1/streams/{ticket}` with a WebSocket upgrade, at the ticket's URL. */
  readonly streams: readonly StreamTicket[]
  readonly volumes_version: string
  /** The caps of all volumes whose home is this worker; null: as in `known_volumes_version`. */
  readonly volumes: readonly DesiredVolume[] | null
  /** Volumes that the worker must delete. */
  readonly discard_volumes: readonly Pick<DesiredVolume, 'org_id' | 'volume_id'>[]
  /** The URLs of all live server processes. The worker stands by at each, and syncs with another when one fails. */
  readonly replicas?: readonly string[]
  /** Present while the worker gets no new runs. `deadline_at`: when its runs are asked to stop (RFC 3339), or null. */
  readonly drain?: { readonly deadline_at: string | null }
}

/** `url`: the server process that waits for the stream. Without it: the one that the worker syncs with. */
type TicketTo = { readonly ticket: string; readonly url?: string }

/**
 * `agent`: the raw bytes of a run's command channel. `volume`: HTTP/1.1 by `volume-protocol.ts`. `logs`: lines by
 * `log-protocol.ts`.
 */
export type StreamTicket =
  | (TicketTo & { readonly kind: 'agent'; readonly run_id: RunId })
  | (TicketTo & { readonly kind: 'volume'; readonly volume: DesiredVolume })
  | (TicketTo & { readonly kind: 'logs'; readonly sandbox_id: SandboxId; readonly query: LogQuery })

/**
 * A worker keeps WebSocket requests open at `STAND_BY_PATH`. The control plane accepts one when it needs a stream, and says
 * the purpose in this header of its reply: a `StreamPurpose` as JSON in base64url. Otherwise it refuses it after a while.
 */
export const STAND_BY_PATH = '/worker/v1/streams'
export const STREAM_PURPOSE_HEADER = 'x-sandyard-stream-purpose'
/** How long the control plane holds such a request: less than the minute after which proxies cut silent connections. */
export const STAND_BY_HOLD_MS = 50_000

/** What a stream is for. Whoever waits for the stream makes its ticket. */
export type StreamPurpose = StreamTicket extends infer One
  ? One extends StreamTicket
    ? Omit<One, keyof TicketTo>
    : never
  : never

/** A run as the driver observes it. */
export type ObservedRun = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly phase: RunPhase
  /** Present when `phase` is `ended`. */
  readonly outcome?: RunOutcome
  /** True once the sandbox was idle for its whole idle timeout. */
  readonly is_idle_expired?: boolean
  /** Facts for the sandbox's events, such as the image's digest and the isolation in force. */
  readonly facts?: Readonly<Record<string, string>>
}
export const RUN_PHASES = ['starting', 'running', 'stopping', 'ended'] as const
export type RunPhase = (typeof RUN_PHASES)[number]

/** A run that the control plane desires on this worker. */
export type DesiredRun = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly org_id: OrgId
  readonly slug: string
  readonly desired_status: 'running' | 'stopped'
  /** From SIGTERM to SIGKILL, in milliseconds. */
  readonly grace_ms: number
  readonly spec: SandboxSpec
  /** All volumes that the spec uses: those of named mounts, and the host volume if a bind mount or a copy needs it. */
  readonly volumes: readonly RunVolume[]
  /** The most that the disk of a sandbox may have if its spec names no size, in MiB; null: the worker's default size. */
  readonly default_disk_max_mib: number | null
  /** The credential to present to the image's registry; null: none. Never logged. */
  readonly registry_auth: { readonly username: string; readonly password: string } | null
}
