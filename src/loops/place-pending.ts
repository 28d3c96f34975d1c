import { transitionEach } from '../control/transition-each.ts'
import { SYSTEM, type Transition, type TransitionDeps } from '../control/transition.ts'
import { isTorn, place } from '../domain/placement.ts'
import type { Log } from '../lib/log.ts'
import * as runs from '../store/runs.ts'
import * as workers from '../store/workers.ts'
import type { Loop } from './loop.ts'

/** How many runs are looked at together. */
const PAGE = 500

type PlaceDeps = TransitionDeps & { readonly log: Log }

/**
 * Gives runs that wait to workers with room, the oldest first, and says of the others that there is none. A pass looks
 * at all that wait: however many have no place, they don't keep a later one from its own.
 */
export function placePending(deps: PlaceDeps): Loop {
  return { name: 'place-pending', periodMs: 1_000, topics: ['pending'], run: (signal) => pass(deps, signal) }
}

async function pass(deps: PlaceDeps, signal: AbortSignal): Promise<null> {
  for (let after: runs.PendingRun | null = null; ;) {
    const page: readonly runs.PendingRun[] = await placePage(deps, after, signal)
    after = page.at(-1) ?? null
    if (after === null || page.length < PAGE) return null
  }
}

async function placePage(
  deps: PlaceDeps,
  after: runs.PendingRun | null,
  signal: AbortSignal,
): Promise<readonly runs.PendingRun[]> {
  const [pending, live] = await deps.db.asSystem(async (q) => {
    const waiting = await runs.pending(q, after, PAGE)
    return [waiting, waiting.length === 0 ? [] : await workers.live(q, deps.clock.now())]
  })
  await transitionEach(deps, decisionsOn(pending, live), signal)
  return pending
}

function decisionsOn(pending: readonly runs.PendingRun[], live: readonly workers.WorkerRow[]): readonly Transition[] {
  const offers = live.map((worker) => ({
    id: worker.id,
    free_vcpus: worker.vcpus - worker.used_vcpus,
    free_memory_mib: worker.memory_mib - worker.used_memory_mib,
    abilities: worker.driver?.abilities ?? [],
    storage: worker.storage,
  }))
  const torn = pending.filter(isTorn)
  const { placed, waiting } = place(
    pending.filter((run) => !isTorn(run)).map((run) => ({ ...run, id: run })),
    offers,
  )
  const nameOf = new Map(live.map((worker) => [worker.id, worker.name]))
  const cause = { actor: SYSTEM, code: 'placement' } as const
  return [
    ...torn.map(({ sandbox_id, run_id }): Transition => ({ sandbox_id, run_id, ...TORN })),
    ...placed.map(({ id: { sandbox_id, run_id }, worker_id }): Transition => {
      const worker = { id: worker_id, name: nameOf.get(worker_id) ?? worker_id }
      return { sandbox_id, run_id, event: 'placed', cause, worker }
    }),
    ...waiting
      .filter(({ status_reason }) => status_reason !== 'insufficient_capacity')
      .map(({ sandbox_id, run_id }): Transition => ({ sandbox_id, run_id, event: 'no_capacity', cause })),
  ]
}

/** Waiting would not help: a volume keeps its home. It comes to this when volumes got different homes since the create. */
const TORN_MESSAGE = 'its volumes lie on different workers, and a sandbox runs on one'
const TORN = {
  event: 'ended_badly',
  outcome: { kind: 'start_failed', reason: 'mount', message: TORN_MESSAGE },
  cause: { actor: SYSTEM, code: 'placement', message: TORN_MESSAGE },
} as const satisfies Partial<Transition>
