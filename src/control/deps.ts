import type { Clock } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import type { Random } from '../lib/random.ts'
import type { Seal } from '../lib/seal.ts'
import type { Uuids } from '../lib/uuid.ts'
import type { Database, Queryable } from '../store/postgres/database.ts'
import type { Notifications } from '../store/postgres/notifications.ts'
import type { IsolationLevel } from '../domain/isolation.ts'
import type { PreviewSite } from '../domain/previews/preview.ts'
import type { PlacementPolicy } from '../domain/workers/placement.ts'

/**
 * The dependencies that a server process gets from outside. A use case declares the parts that it uses with `Pick`. It
 * declares other dependencies by the types next to their factories, such as `SandboxReader` in `read-sandboxes.ts`.
 */
export type BaseDeps = {
  readonly db: Database
  readonly clock: Clock
  readonly random: Random
  readonly uuids: Uuids
  readonly log: Log
  readonly seal: Seal
  readonly notifications: Notifications
}

/** The dependencies of a change that records an audit event. */
export type WriteDeps = Pick<BaseDeps, 'db' | 'clock' | 'uuids'>

export type ControlSettings = {
  /** The time from SIGTERM to SIGKILL when a sandbox is stopped, in milliseconds. */
  readonly stopGraceMs: number
  /** The registry of image references that name no host. */
  readonly defaultRegistry: string
  /** The largest disk that a create request may ask for, in MiB. */
  readonly maxDiskMib: number
  readonly placement: PlacementPolicy
  /** Returns what the operator denies to sandboxes, as `OperatorRanges` lists it. The addresses in it may change. */
  readonly networkDeny: () => readonly string[]
  /** Where previews are served. Absent, or null as its result: nowhere. */
  readonly previews?: () => PreviewSite | null
  /** The weakest isolation that sandboxes may have. Absent or null: any. */
  readonly requireIsolation?: IsolationLevel | null
  /** How long the reply to a request with an Idempotency-Key is remembered. Absent: a day. Null: for ever. */
  readonly idempotencyKeptMs?: number | null
}

/** The dependency of use cases that read image references. */
export type DefaultRegistryDeps = { readonly settings: Pick<ControlSettings, 'defaultRegistry'> }

/**
 * The fence of the loops' leader, called first in each of its transactions. It rejects if this process no longer leads.
 * Otherwise it keeps other processes from becoming the leader until the transaction ends.
 */
export type LeaderFence = (tx: Queryable) => Promise<void>

/** The dependency of what only the leader changes. Absent: no leader is elected. */
export type FenceDeps = { readonly fence?: LeaderFence }
