import { makeFleetReader, placementRequestOf } from '../control/workers/read-fleet.ts'
import type { WorkerId } from '../domain/ids.ts'
import type { PlacementPolicy, PlacementRequest } from '../domain/workers/placement.ts'
import { makeCapacityIndex, type CapacityIndex } from '../domain/workers/capacity-index.ts'
import type { Clock } from '../lib/clock.ts'
import type { Database } from '../store/postgres/database.ts'
import type { PendingRun } from '../store/workers/capacity.ts'

/**
 * The free room of the fleet as a loop knows it: read from the tables, and from then on less what the loop itself gave
 * away. It may be out of date, which costs a place that is refused or found later and nothing else: that a worker has
 * room is settled in the transaction that places.
 */
export type FleetSnapshot = {
  /** Reads the tables, unless they were read so short a time ago that it would take more than a tenth of the time; then: false. */
  refresh(): Promise<boolean>
  /** How long until they may be read again, in milliseconds. */
  restMs(): number
  /** Gives up what is known: nobody knows what became of what was given away. */
  forget(): void
  /** The free room. Throws before the first `refresh`. */
  readonly capacityIndex: CapacityIndex
  nameOf(worker: WorkerId): string
  /** A run as placement takes it. */
  requestOf(run: PendingRun): PlacementRequest
}

export type SnapshotDeps = {
  readonly db: Database
  readonly clock: Clock
  readonly settings: { readonly placement: PlacementPolicy; readonly defaultRegistry: string }
}

/** The part of the time that reading the tables may take: with 10,000 workers and 100,000 runs it takes 0.1 s or more. */
const REST_PER_READ_TIME = 9
/** A read that took long because this process or the database stood still says nothing of what the next one costs. */
const LONGEST_REST_MS = 5_000

/** Makes a picture that knows nothing yet. */
export function makeFleetSnapshot({ db, clock, settings }: SnapshotDeps): FleetSnapshot {
  const read = makeFleetReader()
  let known: { readonly pool: CapacityIndex; readonly names: ReadonlyMap<WorkerId, string> } | null = null
  let dueAtMs = Number.NEGATIVE_INFINITY

  return {
    async refresh() {
      const fromMs = clock.monotonicMs()
      if (known !== null && fromMs < dueAtMs) return false
      const workers = await db.asSystem((q) => read(q, clock.now()))
      known = {
        pool: makeCapacityIndex(workers, settings.placement),
        names: new Map(workers.map(({ id, name }) => [id, name])),
      }
      const nowMs = clock.monotonicMs()
      dueAtMs = nowMs + Math.min((nowMs - fromMs) * REST_PER_READ_TIME, LONGEST_REST_MS)
      return true
    },
    restMs: () => Math.max(0, dueAtMs - clock.monotonicMs()),
    forget() {
      known = null
    },
    get capacityIndex() {
      if (known === null) throw new Error('the picture of the fleet was not read yet')
      return known.pool
    },
    nameOf: (worker) => known?.names.get(worker) ?? worker,
    requestOf: (run) => placementRequestOf(run, settings.defaultRegistry),
  }
}
