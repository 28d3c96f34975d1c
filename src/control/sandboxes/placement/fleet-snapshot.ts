import { makeFleetReader, placementRequestOf, type PlacementSettings } from './read-fleet.ts'
import type { WorkerId } from '../../../domain/ids.ts'
import type { PlacementPolicy, PlacementRequest } from '../../../domain/workers/placement.ts'
import { makeCapacityIndex, type CapacityIndex } from '../../../domain/workers/capacity-index.ts'
import type { Clock } from '../../../lib/clock.ts'
import type { Database } from '../../../store/postgres/database.ts'
import type { PendingRun } from '../../../store/workers/capacity.ts'

/**
 * A copy of the fleet's free capacity. Whoever places runs reads the copy from the tables, and then subtracts the
 * capacity of each run that it assigns. The copy may be out of date. That only delays placements, because the
 * transaction that places a run checks the worker's capacity again.
 */
export type FleetSnapshot = {
  /**
   * Reads the fleet from the tables and resolves with true. While `restMs` is above 0, it reads nothing and resolves
   * with false.
   */
  refresh(): Promise<boolean>
  /**
   * The time until `refresh` reads the tables again, in milliseconds. Reads usually take at most a tenth of the time.
   */
  restMs(): number
  /**
   * Lets the next `refresh` read the tables. Call it when it is unknown which of the subtracted assignments were written
   * to them. Whoever is using the snapshot meanwhile goes on with it.
   */
  forget(): void
  /** The free capacity. Throws before the first `refresh`. */
  readonly capacityIndex: CapacityIndex
  nameOf(worker: WorkerId): string
  /** Whether a worker is connected and takes runs. */
  isServing(worker: WorkerId | null): boolean
  /** Converts a pending run to a placement request. */
  requestOf(run: PendingRun): PlacementRequest
}

export type SnapshotDeps = {
  readonly db: Database
  readonly clock: Clock
  readonly settings: PlacementSettings & { readonly placement: PlacementPolicy }
}

/**
 * The pause after a read of the fleet, as a multiple of the read's duration. With 10,000 workers and 100,000 runs, a
 * read takes 0.1 s or more.
 */
const REST_PER_READ_TIME = 9
/**
 * The longest pause, in milliseconds. It keeps one slow read, for example on a paused machine, from delaying the next
 * one for long.
 */
const LONGEST_REST_MS = 5_000

/** Makes a snapshot that has not been read yet. */
export function makeFleetSnapshot({ db, clock, settings }: SnapshotDeps): FleetSnapshot {
  const read = makeFleetReader()
  let known: { readonly index: CapacityIndex; readonly names: ReadonlyMap<WorkerId, string> } | null = null
  let dueAtMs = Number.NEGATIVE_INFINITY

  return {
    async refresh() {
      const fromMs = clock.monotonicMs()
      if (known !== null && fromMs < dueAtMs) return false
      const workers = await db.asSystem((q) => read(q, clock.now()))
      known = {
        index: makeCapacityIndex(workers, settings.placement),
        names: new Map(workers.map(({ id, name }) => [id, name])),
      }
      const nowMs = clock.monotonicMs()
      dueAtMs = nowMs + Math.min((nowMs - fromMs) * REST_PER_READ_TIME, LONGEST_REST_MS)
      return true
    },
    restMs: () => Math.max(0, dueAtMs - clock.monotonicMs()),
    forget() {
      dueAtMs = Number.NEGATIVE_INFINITY
    },
    get capacityIndex() {
      if (known === null) throw new Error('the fleet snapshot was not read yet')
      return known.index
    },
    nameOf: (worker) => known?.names.get(worker) ?? worker,
    isServing: (worker) => worker !== null && known?.names.has(worker) === true,
    requestOf: (run) => placementRequestOf(run, settings),
  }
}
