import type { SandboxId } from '../../domain/ids.ts'
import { explainPlacement, type PlacementExplanation } from '../../domain/workers/explain-placement.ts'
import { WAITING_COUNTED_MAX } from '../../domain/requests/request-bounds.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Database } from '../../store/postgres/database.ts'
import * as capacity from '../../store/workers/capacity.ts'
import { makeFleetReader, placementRequestOf, type NamedPlacementWorker } from '../workers/read-fleet.ts'

/** What is told of a sandbox that waits for a worker with room. */
export type WaitingDetails = PlacementExplanation & {
  /** 1: the next. Beyond `WAITING_COUNTED_MAX`: one more than that. */
  readonly position: number
  /** How many wait in all organizations; counted as far as the position is. */
  readonly waiting: number
}

/** Says why a sandbox waits; null for one that does not, or does no longer. */
export type ExplainWaiting = (sandbox: SandboxId) => Promise<WaitingDetails | null>

/** How long the picture of the fleet is told from: many clients look at what waits, again and again. */
const FLEET_CACHE_MS = 1_000

type ExplainDeps = {
  readonly db: Database
  readonly clock: Clock
  readonly settings: { readonly defaultRegistry: string }
}

/** Makes the use case. It reads the fleet once for all that ask within a second, and of those that wait a bounded number. */
export function makeExplainWaiting({ db, clock, settings }: ExplainDeps): ExplainWaiting {
  const read = makeFleetReader()
  let known: Promise<readonly NamedPlacementWorker[]> | null = null
  let untilMs = Number.NEGATIVE_INFINITY

  const fleet = (): Promise<readonly NamedPlacementWorker[]> => {
    if (known !== null && clock.monotonicMs() < untilMs) return known
    const reading = db.asSystem((q) => read(q, clock.now()))
    known = reading
    untilMs = clock.monotonicMs() + FLEET_CACHE_MS
    reading.catch(() => {
      if (known === reading) known = null // who asked meets the failure; the next reads anew
    })
    return reading
  }

  return async (sandbox) => {
    const run = await db.asSystem((q) => capacity.findWaiting(q, sandbox, WAITING_COUNTED_MAX))
    if (run === null) return null
    const { missing, largest_free } = explainPlacement(placementRequestOf(run, settings.defaultRegistry), await fleet())
    return { position: run.position, waiting: run.waiting, missing, largest_free }
  }
}
