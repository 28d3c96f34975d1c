import type { SnapshotTask } from '../snapshots/snapshot-protocol.ts'
import type { MetricsQuery } from '../streams/metrics-protocol.ts'
import type { LogQuery } from '../streams/log-protocol.ts'
import type { OrgId, RunId, SandboxId, SnapshotId, VolumeId, WorkerId } from '../../domain/ids.ts'
import type { OperatorRanges } from '../../domain/network/operator-denials.ts'
import type { RunOutcome } from '../../domain/sandboxes/run.ts'
import type { MeasuredPhase } from '../../domain/sandboxes/start-phases.ts'
import type { Capacity, DriverReport, StorageReport } from '../../domain/workers/worker.ts'
import type { WorkerDisk } from '../../domain/workers/disk-pressure.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'
import type { RunInterception } from '../../domain/network/interception.ts'
import type { RunSecret } from '../../domain/spec/secrets.ts'

export type { RunOutcome, StartFailure } from '../../domain/sandboxes/run.ts'
export type { Capacity, DriverReport, StorageReport } from '../../domain/workers/worker.ts'

/**
 * The version of the protocol between workers and the control plane. A worker sends `POST /worker/v1/sync`, a long
 * poll, with its whole observed state. The answer contains the whole desired state of the worker, or what changed since an
 * answer that the worker names, so either side may repeat a message. The id of a run is its fencing token.
 */
export const WORKER_PROTOCOL_VERSION = 12

/**
 * The route on which a machine becomes a worker. The machine creates a credential, stores it, and sends the
 * credential's SHA-256 with a join token. It may repeat the same request until it gets an answer.
 */
export const JOIN_PATH = '/worker/v1/join'

export type JoinRequest = {
  readonly protocol: number
  readonly token: string
  /** The SHA-256 of the credential, in hexadecimal digits. */
  readonly credential_sha256: string
  /** The worker's name, chosen by its operator. Null: the name in the token, or else `fallback_name`. */
  readonly name: string | null
  readonly fallback_name: string
}

export type JoinAnswer = { readonly worker_id: WorkerId; readonly name: string }

/**
 * The longest time for which the control plane delays the answer to a sync when nothing has changed, in milliseconds.
 * It sends the head of the answer as soon as the report is recorded. From then on the worker knows that its lease was
 * extended.
 */
export const SYNC_HOLD_MS = 8_000

/** The maximum number of syncs of a worker at the same time: one that the control plane holds, and one with a new report. */
export const SYNCS_AT_ONCE = 2

export type SyncRequest = {
  readonly protocol: number
  readonly worker_id: WorkerId
  /** A UUIDv7 of this worker process, greater than those of its earlier processes: see `ReportPosition`. */
  readonly incarnation: string
  /**
   * The number of the sync, from 1 within an incarnation, in the order of the worker's observations. A later sync ends
   * the wait of an earlier one. A report that arrives after a later one changes nothing.
   */
  readonly seq: number
  /**
   * The `generation` of the last answer, if this report differs only in `seq` from the report that got that answer.
   * Otherwise null. While that generation is current, the control plane need not read the report.
   */
  readonly known_generation: number | null
  /**
   * The `desired_version` of the last answer that the worker applied, or null. The answer leaves out the runs while
   * this version is current.
   */
  readonly known_desired_version: string | null
  readonly capacity: Capacity
  /** The file system with the worker's data folder, rounded. Absent: it is not watched. */
  readonly disk?: WorkerDisk
  readonly driver: DriverReport
  readonly observed_runs: readonly ObservedRun[]
  /** Sandboxes whose writable layer is stored on this worker, whether or not they run. */
  readonly stored_sandboxes: readonly SandboxId[]
  /** Open tickets that the worker has already dialled. They are no reason to answer this sync early. */
  readonly dialled_tickets: readonly string[]
  readonly storage: StorageReport
  /** How much space each volume on this worker uses. Null: unchanged since the last report that was answered. */
  readonly volumes: readonly StoredVolume[] | null
  /** The `volumes_version` of the last answer that the worker applied, or null. */
  readonly known_volumes_version: string | null
}

export type StoredVolume = { readonly org_id: OrgId; readonly volume_id: VolumeId; readonly used_bytes: number }

/** A volume with the caps to enforce, in bytes. Null: no cap. */
export type DesiredVolume = {
  readonly org_id: OrgId
  readonly volume_id: VolumeId
  readonly capacity_bytes: number | null
  /** The cap for all volumes of the organization together. */
  readonly org_capacity_bytes: number | null
}

/** A volume that a run mounts: the default volume of its organization (`host`), or a named volume (`managed`). */
export type RunVolume = DesiredVolume & { readonly kind: 'host' | 'managed'; readonly name: string | null }

export type SyncAnswer = {
  /**
   * The worker's generation. The control plane raises it whenever something changes that the worker must know. Null
   * when the control plane must read the next report in full, because this answer or the last report changed something.
   */
  readonly generation: number | null
  readonly desired_version: string
  /** The runs that this worker must run. Null: unchanged since `known_desired_version`. */
  readonly desired_runs: readonly DesiredRun[] | null
  /**
   * Present if `desired_runs` has only the runs that are new or changed since `known_desired_version`. Of those that the worker
   * knows, `stopping_runs` must stop and `gone_runs` must no longer run. The others stay as they are.
   */
  readonly changes_only?: { readonly stopping_runs: readonly RunId[]; readonly gone_runs: readonly RunId[] }
  /**
   * Runs that this worker must run as well, and for which this answer has no room. A later answer has them. Until then, the worker leaves
   * those that it has as they are. Absent: none.
   */
  readonly later_runs?: readonly RunId[]
  /**
   * The server process that made this answer. It makes its answers in the order of a worker's reports. The answers of two
   * processes may come in any order. Absent: a process of an earlier version made it.
   */
  readonly answered_by?: string
  /** Those of `stored_sandboxes` that were deleted. The worker deletes their writable layers. */
  readonly discard_sandboxes: readonly SandboxId[]
  /** Streams that the worker must dial: `GET /worker/v1/streams/{ticket}` with a WebSocket upgrade, at the ticket's URL. */
  readonly streams: readonly StreamTicket[]
  readonly volumes_version: string
  /** The caps of all volumes whose home is this worker. Null: unchanged since `known_volumes_version`. */
  readonly volumes: readonly DesiredVolume[] | null
  /** Volumes that the worker must delete. */
  readonly discard_volumes: readonly Pick<DesiredVolume, 'org_id' | 'volume_id'>[]
  /**
   * The URLs of all live server processes. The worker keeps stand-by requests open at each of them. When one fails, it
   * syncs with another.
   */
  readonly replicas?: readonly string[]
  /**
   * Present while the worker gets no new runs. `deadline_at` is the time at which its runs are asked to stop (RFC
   * 3339), or null.
   */
  readonly drain?: { readonly deadline_at: string | null }
}

/**
 * A ticket, and the URL of the server process that waits for the ticket's stream. Without `url`, the process with which
 * the worker syncs waits for it.
 */
type TicketTo = { readonly ticket: string; readonly url?: string }

/**
 * A ticket for a stream. `agent`: the raw bytes of a run's command channel. `volume`: HTTP/1.1 as in
 * `volume-protocol.ts`. `logs`: lines as in `log-protocol.ts`. `snapshot`: one answer as in `snapshot-protocol.ts`.
 * `metrics`: as in `metrics-protocol.ts`.
 */
export type StreamTicket =
  | (TicketTo & { readonly kind: 'agent'; readonly run_id: RunId })
  | (TicketTo & { readonly kind: 'volume'; readonly volume: DesiredVolume })
  | (TicketTo & { readonly kind: 'logs'; readonly sandbox_id: SandboxId; readonly query: LogQuery })
  | (TicketTo & { readonly kind: 'snapshot'; readonly task: SnapshotTask })
  /** The worker writes the files of a snapshot and of its image, as an archive of an OCI image layout. */
  | (TicketTo & { readonly kind: 'snapshot_files'; readonly snapshot_id: SnapshotId })
  | (TicketTo & { readonly kind: 'metrics'; readonly query: MetricsQuery })

/** The path of a WebSocket that carries the files of a snapshot to the worker of a run that needs them. */
export const SNAPSHOT_FILES_PATH = '/worker/v1/snapshots'

/**
 * The path of stand-by requests. A worker keeps several of these WebSocket requests open. When the control plane needs
 * a stream, it accepts one of the requests and sends the stream's purpose in a reply header: a `StreamPurpose` as JSON
 * in base64url. A request that was not needed for `STAND_BY_HOLD_MS` is refused.
 */
export const STAND_BY_PATH = '/worker/v1/streams'
export const STREAM_PURPOSE_HEADER = 'x-sandyard-stream-purpose'
/** How long the control plane keeps a stand-by request open. Proxies cut silent connections after a minute. */
export const STAND_BY_HOLD_MS = 50_000

/**
 * The purpose of a stream: a `StreamTicket` without `ticket` and `url`, which the process that waits for the stream
 * adds.
 */
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
  /**
   * How long the run ran, in milliseconds by a clock that never jumps. Present when `phase` is `ended`, if the worker
   * knows.
   */
  readonly ran_ms?: number
  /** True once the sandbox has been idle for its whole idle timeout. */
  readonly is_idle_expired?: boolean
  /** How many of the run's processes the kernel killed because memory ran out. Absent: none, or the driver doesn't count. */
  readonly memory_kills?: number
  /**
   * How long each phase of the run's start took. Present in the reports of a run that started or failed to, until one of
   * them was answered.
   */
  readonly start_phases?: readonly MeasuredPhase[]
  /**
   * With `start_phases`: how long before the report the start began, in milliseconds by a clock that never jumps. It
   * shows how long the report took.
   */
  readonly start_age_ms?: number
  /** Data for the sandbox's events, such as the image's digest and the isolation in use. */
  readonly facts?: Readonly<Record<string, string>>
}
export const RUN_PHASES = ['starting', 'running', 'stopping', 'ended'] as const
export type RunPhase = (typeof RUN_PHASES)[number]

/** What the plan of an organization allows, everywhere together. Null: unlimited. */
export type OrgLimits = {
  /** How many sandboxes may run at once. */
  readonly max_running: number | null
  readonly max_vcpus_per_sandbox: number | null
  readonly max_memory_mib_per_sandbox: number | null
}

/** A run that this worker must run. */
export type DesiredRun = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly org_id: OrgId
  /** The sandbox's name when the answer was made, for the log. */
  readonly name: string
  readonly slug: string
  /** The organization's slug, for the log. */
  readonly org: string
  readonly desired_status: 'running' | 'stopped'
  /** The time from SIGTERM to SIGKILL, in milliseconds. */
  readonly grace_ms: number
  readonly spec: SandboxSpec
  /**
   * All volumes that the spec uses: those of named mounts, and the default volume if a bind mount or a copy needs it.
   */
  readonly volumes: readonly RunVolume[]
  /**
   * For a spec without a disk size: the disk gets the worker's default size, but at most this size, in MiB. Null: no
   * maximum.
   */
  readonly default_disk_max_mib: number | null
  /** What the organization may run. Absent from a control plane of an earlier version. */
  readonly org_limits?: OrgLimits
  /** The operator's decision about networks: judged before the spec's policy. The worker adds what it knows itself. */
  readonly network_ranges: OperatorRanges
  /** The credential for the image's registry. Null: none. It is never logged. */
  readonly registry_auth: { readonly username: string; readonly password: string } | null
  /**
   * The secrets with their values: for a run that must run, if its sandbox has or had any. They may differ from those
   * in `spec` while a change waits for the next start. Null or absent: there are none, or the values can't be opened.
   * Never logged, and never written to the worker's disk.
   */
  readonly secrets?: readonly RunSecret[] | null
  /**
   * How TLS is intercepted, with the key that signs: for a run that must run, if `spec` or secrets ask for it. Null or absent:
   * nothing is intercepted, or the key can't be opened. Never logged, and never written to the worker's disk.
   */
  readonly interception?: RunInterception | null
}
