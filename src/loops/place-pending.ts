import { PLACEMENT_TOPIC } from '../control/topics.ts'
import { PLACEMENT_CAUSE } from '../control/sandboxes/placement/place-admissions.ts'
import { moveAll, type MoveAllDeps } from '../control/sandboxes/transitions/transition-batches.ts'
import type { TransitionRequest } from '../control/sandboxes/transitions/transition-step.ts'
import type { WorkerId } from '../domain/ids.ts'
import { hasConflictingHomes } from '../domain/workers/placement.ts'
import {
  makeFleetSnapshot,
  type FleetSnapshot,
  type SnapshotDeps,
} from '../control/sandboxes/placement/fleet-snapshot.ts'
import { awayFromHome } from '../control/sandboxes/placement/read-fleet.ts'
import * as capacity from '../store/workers/capacity.ts'
import type { Loop } from './loop.ts'

/** How many pending runs are read at once. */
const PAGE = 1_000

type PlaceDeps = MoveAllDeps & SnapshotDeps

/**
 * Places pending runs on workers with enough capacity, oldest first, and marks the others as waiting. Runs that fit
 * nowhere do not block later ones. If the pass could refresh the fleet snapshot, it tries all pending runs. Otherwise
 * it tries only new runs, because the waiting runs did not fit into the same snapshot before.
 */
export function makePlacePendingLoop(deps: PlaceDeps): Loop {
  const snapshot = makeFleetSnapshot(deps)
  return {
    name: 'place-pending',
    periodMs: 1_000,
    topics: [PLACEMENT_TOPIC],
    async run(signal) {
      try {
        return await pass(deps, snapshot, signal)
      } catch (error) {
        snapshot.forget()
        throw error
      }
    },
  }
}

async function pass(deps: PlaceDeps, snapshot: FleetSnapshot, signal: AbortSignal): Promise<number | null> {
  const [newRuns, has_waiting] = await deps.db.asSystem((q) =>
    Promise.all([capacity.pending(q, { after: null, limit: PAGE, waitingUpTo: null }), capacity.hasWaiting(q)]),
  )
  if (newRuns.length === 0 && !has_waiting) return null
  const isFresh = await snapshot.refresh()
  const waitingUpTo = isFresh && has_waiting ? snapshot.capacityIndex.largestFree : null
  let pending = waitingUpTo === null ? newRuns : await nextPage(deps, { after: null, limit: PAGE, waitingUpTo })
  for (;;) {
    await moveAll(deps, decisionsOn(pending, snapshot), { signal })
    const after = pending.at(-1) ?? null
    if (after === null || pending.length < PAGE) return has_waiting && !isFresh ? snapshot.restMs() : null
    pending = await nextPage(deps, { after, limit: PAGE, waitingUpTo })
  }
}

function nextPage({ db }: PlaceDeps, page: capacity.PendingPage): Promise<readonly capacity.PendingRun[]> {
  return db.asSystem((q) => capacity.pending(q, page))
}

function decisionsOn(pending: readonly capacity.PendingRun[], snapshot: FleetSnapshot): readonly TransitionRequest[] {
  return pending.flatMap((run): readonly TransitionRequest[] => {
    const { sandbox_id, run_id } = run
    if (hasConflictingHomes(run)) return [{ sandbox_id, run_id, ...CONFLICTING_HOMES }]
    const worker_id = chooseWorker(run, snapshot)
    if (worker_id !== null) {
      const ports = run.ports === null ? {} : { ports: run.ports }
      const worker = { id: worker_id, name: snapshot.nameOf(worker_id), ...ports }
      return [{ sandbox_id, run_id, event: 'placed', cause: PLACEMENT_CAUSE, worker }]
    }
    return run.is_waiting ? [] : [{ sandbox_id, run_id, event: 'no_capacity', cause: PLACEMENT_CAUSE }]
  })
}

/** The worker with the run's disk, or with the snapshot that it is made from. Without room there, a worker that can fetch it. */
function chooseWorker(run: capacity.PendingRun, snapshot: FleetSnapshot): WorkerId | null {
  const { capacityIndex } = snapshot
  const found = capacityIndex.allocate(snapshot.requestOf(run))
  if (found !== null || !run.may_fetch || !snapshot.isServing(run.home_worker_id)) return found
  return capacityIndex.allocate(snapshot.requestOf(awayFromHome(run)))
}

/**
 * The failure of a run whose volumes have different home workers. Waiting would not help, because volumes keep their
 * homes. The create can't refuse such a run if the volumes get their homes only later.
 */
const CONFLICTING_HOMES_MESSAGE = 'its volumes are on different workers, and a sandbox runs on one'
const CONFLICTING_HOMES = {
  event: 'ended_badly',
  outcome: { kind: 'start_failed', reason: 'mount', message: CONFLICTING_HOMES_MESSAGE },
  cause: { ...PLACEMENT_CAUSE, message: CONFLICTING_HOMES_MESSAGE },
} as const satisfies Partial<TransitionRequest>
