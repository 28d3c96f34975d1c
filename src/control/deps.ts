import type { Clock } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import type { Random } from '../lib/random.ts'
import type { Seal } from '../lib/seal.ts'
import type { Uuids } from '../lib/uuid.ts'
import type { Database } from '../store/postgres/database.ts'
import type { Notifications } from '../store/postgres/notifications.ts'
import type { PlacementPolicy } from '../domain/workers/placement.ts'

/**
 * The outside world of a server process. A use case takes the parts that it needs with `Pick`. It declares other dependencies
 * by the types next to their factories, such as `SandboxReader` in `read-sandboxes.ts`.
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

/** What a change needs that leaves an audit event. */
export type WriteDeps = Pick<BaseDeps, 'db' | 'clock' | 'uuids'>

export type ControlSettings = {
  /** From SIGTERM to SIGKILL when a sandbox is stopped, in milliseconds. */
  readonly stopGraceMs: number
  /** The registry that an image reference without a host means. */
  readonly defaultRegistry: string
  readonly placement: PlacementPolicy
}

/** For what reads image references. */
export type RegistryDeps = { readonly settings: Pick<ControlSettings, 'defaultRegistry'> }
