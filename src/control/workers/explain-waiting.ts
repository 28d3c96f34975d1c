import type { SandboxId } from '../../domain/ids.ts'
import {
  explainPlacement,
  type MissingRequirement,
  type PlacementExplanation,
} from '../../domain/workers/explain-placement.ts'
import { summarizeMissing } from '../../domain/workers/summarize-missing.ts'
import { mayServeOrg } from '../../domain/workers/worker-bounds.ts'
import { WAITING_COUNTED_MAX } from '../../domain/requests/request-bounds.ts'
import type { PendingRun } from '../../store/workers/capacity.ts'
import * as waitingRuns from '../../store/workers/waiting-runs.ts'
import type { BaseDeps } from '../deps.ts'
import {
  awayFromHome,
  makeFleetReader,
  placementRequestOf,
  type NamedPlacementWorker,
  type PlacementSettings,
} from '../sandboxes/placement/read-fleet.ts'

/** Why a sandbox still waits for a worker with capacity. */
export type WaitingDetails = PlacementExplanation & {
  /**
   * The position in the queue, from 1. A position beyond `WAITING_COUNTED_MAX` is reported as `WAITING_COUNTED_MAX`
   * plus 1.
   */
  readonly position: number
  /** How many sandboxes of all organizations wait. The count stops where `position` stops. */
  readonly waiting: number
}

/** The workers that may get runs, read from the database at most once a second. */
export type FleetReader = {
  /** A fresh read sees everything that is committed before the call. */
  readonly readFleet: (how?: { readonly isFresh: boolean }) => Promise<readonly NamedPlacementWorker[]>
}

/** How long one read of the fleet serves all callers, in milliseconds. Many clients poll waiting sandboxes. */
const FLEET_CACHE_MS = 1_000

/** Makes the cached reader. A failed read rejects its callers and is not cached. */
export function makeReadFleet({ db, clock }: Pick<BaseDeps, 'db' | 'clock'>): FleetReader['readFleet'] {
  const read = makeFleetReader()
  let cached: Promise<readonly NamedPlacementWorker[]> | null = null
  let validUntilMs = Number.NEGATIVE_INFINITY
  return ({ isFresh } = { isFresh: false }) => {
    if (!isFresh && cached !== null && clock.monotonicMs() < validUntilMs) return cached
    const reading = db.asSystem((q) => read(q, clock.now()))
    cached = reading
    validUntilMs = clock.monotonicMs() + FLEET_CACHE_MS
    reading.catch(() => {
      if (cached === reading) cached = null
    })
    return reading
  }
}

/**
 * Explains why a sandbox waits. Returns null for a sandbox that does not wait. Reads a bounded number of waiting runs.
 */
export async function explainWaiting(
  { db, settings, readFleet }: Pick<BaseDeps, 'db'> & { readonly settings: PlacementSettings } & FleetReader,
  sandbox: SandboxId,
): Promise<WaitingDetails | null> {
  const run = await db.asSystem((q) => waitingRuns.findWaiting(q, sandbox, WAITING_COUNTED_MAX))
  if (run === null) return null
  return { position: run.position, waiting: run.waiting, ...explainRun(run, await readFleet(), settings) }
}

function explainRun(
  run: PendingRun,
  fleet: readonly NamedPlacementWorker[],
  settings: PlacementSettings,
): PlacementExplanation {
  const workers = fleet.filter((worker) => mayServeOrg(worker, run.org_id))
  return explainPlacement(placementRequestOf(run.may_fetch ? awayFromHome(run) : run, settings), workers)
}

/** A sandbox of any organization that waits for a worker, as operators see it. `org`: the slug of its organization. */
export type WaitingSandbox = Pick<waitingRuns.ListedWaitingRun, 'name' | 'slug' | 'org' | 'waits_since'> & {
  readonly id: SandboxId
  /** What is missing, in words. */
  readonly reason: string
}

/**
 * The sandboxes of all organizations that wait for a worker, at most `limit` in the order of the queue, and how many wait. The
 * count stops at `WAITING_COUNTED_MAX` plus 1.
 */
export async function listWaiting(
  { db, settings, readFleet }: Parameters<typeof explainWaiting>[0],
  limit: number,
): Promise<{ readonly waiting: number; readonly sandboxes: readonly WaitingSandbox[] }> {
  const waiting = await db.asSystem((q) => waitingRuns.count(q, WAITING_COUNTED_MAX))
  const runs = await db.asSystem((q) => waitingRuns.list(q, limit))
  const fleet = await readFleet()
  const sandboxes = runs.map((run) => {
    const { sandbox_id: id, name, slug, org, waits_since } = run
    const { missing } = explainRun(run, fleet, settings)
    return { id, name, slug, org, waits_since, reason: summarizeMissing(missing) }
  })
  return { waiting, sandboxes }
}

/** What the run lacks that has waited the longest for capacity. Empty if none waits. */
export async function explainOldestWaiting(
  deps: Parameters<typeof explainWaiting>[0],
): Promise<readonly MissingRequirement[]> {
  const oldest = await deps.db.asSystem((q) => waitingRuns.oldestWaiting(q))
  return oldest === null ? [] : ((await explainWaiting(deps, oldest.sandbox_id))?.missing ?? [])
}
