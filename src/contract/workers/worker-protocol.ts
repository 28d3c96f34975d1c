import type { LogQuery } from '../streams/log-protocol.ts'
import type { OrgId, RunId, SandboxId, VolumeId, WorkerId } from '../../domain/ids.ts'
import type { RunOutcome } from '../../domain/sandboxes/run.ts'
import type { Capacity, DriverReport, StorageReport } from '../../domain/workers/worker.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'

export type { RunOutcome, StartFailure } from '../../domain/sandboxes/run.ts'
export type { Capacity, DriverReport, StorageReport } from '../../domain/workers/worker.ts'

/**
 * The conversation between a worker and the control plane: `POST /worker/v1/sync`, a long poll. The worker says all
 * that it sees; the control plane answers with all that it wants. Either side may repeat a message: both are whole
 * pictures, and every run carries its identifier as fencing token.
 */
export const WORKER_PROTOCOL_VERSION = 4

/**
 * Where a machine becomes a worker: it makes a credential, keeps it, and sends its SHA-256 with a join token. The same
 * request may be repeated until it is answered.
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
 * How long the control plane holds a sync that has nothing new to say. The head of its answer comes at once, as soon as the
 * report is taken in: from then on the worker knows that its lease was prolonged, however long the rest is held.
 */
export const SYNC_HOLD_MS = 8_000

export type SyncRequest = {
  readonly protocol: number
  readonly worker_id: WorkerId
  /** A UUIDv7 of this life of the worker's process, greater than those of its earlier lives: see `domain/workers/lease.ts`. */
  readonly incarnation: string
  /**
   * Counts up from 1 within one life, in the order in which the worker looked. A later sync releases an earlier one
   * that is still held; an earlier one that was overtaken on its way moves nothing.
   */
  readonly seq: number
  /**
   * The `generation` of the last answer, as long as everything else in this report, `seq` aside, is as in the report that was
   * answered so and in all between; otherwise null. The control plane then need not compare the report with what it has.
   */
  readonly known_generation: number | null
  /** The `desired_version` of the last answer that the worker holds, or null: an equal one is not sent again. */
  readonly known_desired_version: string | null
  readonly capacity: Capacity
  readonly driver: DriverReport
  readonly observed_runs: readonly ObservedRun[]
  /** Sandboxes whose writable layer lies on this worker, whether or not they run. */
  readonly stored_sandboxes: readonly SandboxId[]
  /** Tickets that the worker has taken already: they are no news to it. */
  readonly dialled_tickets: readonly string[]
  readonly storage: StorageReport
  /** What every volume that lies here takes; null: as in the last report that was answered. */
  readonly volumes: readonly StoredVolume[] | null
  /** The `volumes_version` of the last answer that the worker holds, or null. */
  readonly known_volumes_version: string | null
}

export type StoredVolume = { readonly org_id: OrgId; readonly volume_id: VolumeId; readonly used_bytes: number }

/** A volume with the caps that are to hold, in bytes; null: no cap. */
export type DesiredVolume = {
  readonly org_id: OrgId
  readonly volume_id: VolumeId
  readonly capacity_bytes: number | null
  /** What all volumes of the organization may take together. */
  readonly org_capacity_bytes: number | null
}

/** A volume that a run may reach: its organization's host volume, and those that it mounts by name. */
export type RunVolume = DesiredVolume & { readonly kind: 'host' | 'managed'; readonly name: string | null }

export type SyncAnswer = {
  /**
   * The worker's generation: the control plane raises it whenever something changes that the worker must hear. Null when
   * the next report must be read whole, because of what this answer says or what the report changed.
   */
  readonly generation: number | null
  readonly desired_version: string
  /** null: as in `known_version`. */
  readonly desired_runs: readonly DesiredRun[] | null
  /** Of the `stored` ones, those whose sandbox is gone: their writable layers are to be deleted. */
  readonly discard_sandboxes: readonly SandboxId[]
  /** Streams that the worker is to dial: `GET /worker/v1/streams/{ticket}` with a WebSocket upgrade, at the ticket's URL. */
  readonly streams: readonly StreamTicket[]
  readonly volumes_version: string
  /** The caps of every volume whose home is this worker; null: as in `known_volumes_version`. */
  readonly volumes: readonly DesiredVolume[] | null
  /** Volumes that are to be deleted here. */
  readonly discard_volumes: readonly Pick<DesiredVolume, 'org_id' | 'volume_id'>[]
  /** The URLs of the server processes that live: the worker stands by at all, and syncs with another when one fails. */
  readonly replicas?: readonly string[]
  /** Present while the worker gets no new runs; `deadline_at`: when what it runs is asked to stop (RFC 3339), or null. */
  readonly drain?: { readonly deadline_at: string | null }
}

/** `url`: the server process that waits for the stream; without it, the one that the worker syncs with. */
type TicketTo = { readonly ticket: string; readonly url?: string }

/**
 * `agent`: the raw bytes of a run's command channel. `volume`: HTTP/1.1 as `volume-protocol.ts` says. `logs`: lines as
 * `log-protocol.ts` says.
 */
export type StreamTicket =
  | (TicketTo & { readonly kind: 'agent'; readonly run_id: RunId })
  | (TicketTo & { readonly kind: 'volume'; readonly volume: DesiredVolume })
  | (TicketTo & { readonly kind: 'logs'; readonly sandbox_id: SandboxId; readonly query: LogQuery })

/**
 * A worker that stands by holds requests for a WebSocket at `STAND_BY_PATH`. When a stream is wanted, one is accepted, and
 * this header of its reply says what for: a `StreamPurpose` as JSON in base64url. Otherwise it is refused after a while.
 */
export const STAND_BY_PATH = '/worker/v1/streams'
export const STREAM_PURPOSE_HEADER = 'x-sandyard-asked'
/** How long the control plane holds such a request: less than the minute after which proxies cut what says nothing. */
export const STAND_BY_HOLD_MS = 50_000

/** What a stream is asked for; its ticket is made by who waits for it. */
export type StreamPurpose = StreamTicket extends infer One
  ? One extends StreamTicket
    ? Omit<One, keyof TicketTo>
    : never
  : never

/** A run as the driver itself reports it. */
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

/** A run that the control plane wants on this worker. */
export type DesiredRun = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly org_id: OrgId
  readonly slug: string
  readonly desired_status: 'running' | 'stopped'
  /** From SIGTERM to SIGKILL, in milliseconds. */
  readonly grace_ms: number
  readonly spec: SandboxSpec
  /** Every volume that the spec reaches: by the name of a mount, and the host volume when a bind mount or a copy needs it. */
  readonly volumes: readonly RunVolume[]
  /** What the disk of a sandbox that names no size may be at most, in MiB; null: the worker's default size. */
  readonly default_disk_max_mib: number | null
  /** The credential to present to the image's registry; null: none. Never logged. */
  readonly registry_auth: { readonly username: string; readonly password: string } | null
}
