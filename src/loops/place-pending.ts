import { place } from '../domain/placement.ts'
import { SYSTEM, transition, type TransitionDeps } from '../control/transition.ts'
import * as runs from '../store/runs.ts'
import * as workers from '../store/workers.ts'
import type { Loop } from './loop.ts'

/** The most runs that one pass looks at. */
const PASS_LIMIT = 500

/** Gives runs that wait to workers with room, the oldest first, and says of the others that there is none. */
export function placePending(deps: TransitionDeps): Loop {
  return { name: 'place-pending', periodMs: 1_000, topics: ['pending'], run: (signal) => pass(deps, signal) }
}

async function pass(deps: TransitionDeps, signal: AbortSignal): Promise<number | null> {
  const [pending, live] = await deps.db.asSystem(async (q) => {
    const waiting = await runs.pending(q, PASS_LIMIT)
    return [waiting, waiting.length === 0 ? [] : await workers.live(q, deps.clock.now())]
  })
  if (pending.length === 0) return null
  const requests = pending.map((run) => ({ ...run, id: run.run_id }))
  const offers = live.map((worker) => ({
    id: worker.id,
    free_vcpus: worker.vcpus - worker.used_vcpus,
    free_memory_mib: worker.memory_mib - worker.used_memory_mib,
    abilities: worker.driver?.abilities ?? [],
  }))
  const { placed, waiting } = place(requests, offers)
  const sandboxOf = new Map(pending.map((run) => [run.run_id, run.sandbox_id]))
  const nameOf = new Map(live.map((worker) => [worker.id, worker.name]))
  const cause = { actor: SYSTEM, code: 'placement' } as const
  for (const { id, worker_id } of placed) {
    if (signal.aborted) return null
    const sandbox_id = sandboxOf.get(id)
    if (sandbox_id === undefined) continue
    const worker = { id: worker_id, name: nameOf.get(worker_id) ?? worker_id }
    await transition(deps, { sandbox_id, run_id: id, event: 'placed', cause, worker })
  }
  const told = new Set(pending.filter((run) => run.status_reason === 'insufficient_capacity').map((run) => run.run_id))
  for (const id of waiting) {
    const sandbox_id = sandboxOf.get(id)
    if (signal.aborted || sandbox_id === undefined || told.has(id)) continue
    await transition(deps, { sandbox_id, run_id: id, event: 'no_capacity', cause })
  }
  return null
}
