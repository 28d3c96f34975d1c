import type { Clock } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import type { Random } from '../lib/random.ts'
import type { Seal } from '../lib/seal.ts'
import type { Uuids } from '../lib/uuid.ts'
import type { Database } from '../store/postgres/database.ts'
import type { Notifications } from '../store/postgres/notifications.ts'
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
  readonly placement: PlacementPolicy
}

/** The dependency of use cases that read image references. */
export type RegistryDeps = { readonly settings: Pick<ControlSettings, 'defaultRegistry'> }
