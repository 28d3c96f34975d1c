import { PLACEMENT_TOPIC } from '../control/topics.ts'
import { moveAll } from '../control/sandboxes/transition-batches.ts'
import type { TransitionDeps } from '../control/sandboxes/transition.ts'
import type { TransitionRequest } from '../control/sandboxes/transition-step.ts'
import { SYSTEM_ACTOR } from '../domain/orgs/caller.ts'
import { hasConflictingHomes } from '../domain/workers/placement.ts'
import type { Log } from '../lib/log.ts'
import * as capacity from '../store/workers/capacity.ts'
import { makeFleetSnapshot, type FleetSnapshot, type SnapshotDeps } from './fleet-snapshot.ts'
import type { Loop } from './loop.ts'

/** How many pending runs are read at once. */
const PAGE = 1_000

type PlaceDeps = TransitionDeps & SnapshotDeps & { readonly log: Log }

/**
 * Places pending runs on workers with enough capacity, oldest first, and marks the others as waiting. Runs that fit
 * nowhere do not block later ones. With a fresh fleet snapshot, a pass tries all pending runs. Otherwise nothing has
 * changed for the waiting runs, so the pass tries only new runs.
 */
export function placePending(deps: PlaceDeps): Loop {
  const picture = makeFleetSnapshot(deps)
  return {
    name: 'place-pending',
    periodMs: 1_000,
    topics: [PLACEMENT_TOPIC],
    async run(signal) {
      try {
        return await pass(deps, picture, signal)
      } catch (error) {
        picture.forget()
        throw error
      }
    },
  }
}

async function pass(deps: PlaceDeps, picture: FleetSnapshot, signal: AbortSignal): Promise<number | null> {
  const { has_new, has_waiting } = await deps.db.asSystem((q) => capacity.pendingKinds(q))
  if (!has_new && !has_waiting) return null
  const isFresh = await picture.refresh()
  const waitingUpTo = isFresh ? picture.capacityIndex.largestFree : null
  for (let after: capacity.PendingRun | null = null; ;) {
    const page = { after, limit: PAGE, waitingUpTo }
    const pending: readonly capacity.PendingRun[] = await deps.db.asSystem((q) => capacity.pending(q, page))
    await moveAll(deps, decisionsOn(pending, picture), signal)
    after = pending.at(-1) ?? null
    if (after === null || pending.length < PAGE) return has_waiting && !isFresh ? picture.restMs() : null
  }
}

function decisionsOn(pending: readonly capacity.PendingRun[], picture: FleetSnapshot): readonly TransitionRequest[] {
  return pending.flatMap((run): readonly TransitionRequest[] => {
    const { sandbox_id, run_id } = run
    if (hasConflictingHomes(run)) return [{ sandbox_id, run_id, ...CONFLICTING_HOMES }]
    const worker_id = picture.capacityIndex.allocate(picture.requestOf(run))
    if (worker_id !== null) {
      const worker = { id: worker_id, name: picture.nameOf(worker_id) }
      return [{ sandbox_id, run_id, event: 'placed', cause: CAUSE, worker }]
    }
    return run.is_waiting ? [] : [{ sandbox_id, run_id, event: 'no_capacity', cause: CAUSE }]
  })
}

const CAUSE = { actor: SYSTEM_ACTOR, code: 'placement' } as const

/**
 * Waiting would not help, because volumes keep their home worker. This happens when volumes get different homes after
 * the create.
 */
const CONFLICTING_HOMES_MESSAGE = 'its volumes are on different workers, and a sandbox runs on one'
const CONFLICTING_HOMES = {
  event: 'ended_badly',
  outcome: { kind: 'start_failed', reason: 'mount', message: CONFLICTING_HOMES_MESSAGE },
  cause: { actor: SYSTEM_ACTOR, code: 'placement', message: CONFLICTING_HOMES_MESSAGE },
} as const satisfies Partial<TransitionRequest>
