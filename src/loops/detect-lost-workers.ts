import { WORKER_LEASE_MS } from '../domain/lease.ts'
import { SYSTEM, transition, type TransitionDeps } from '../control/transition.ts'
import * as runs from '../store/runs.ts'
import * as workers from '../store/workers.ts'
import type { Loop } from './loop.ts'

/**
 * Calls the runs of a worker lost whose lease ended: by then the worker has destroyed them itself. A control plane
 * that was away has renewed no lease meanwhile, so nobody is called lost before it has listened for one lease's time.
 */
export function detectLostWorkers(deps: TransitionDeps): Loop {
  const listeningSinceMs = deps.clock.monotonicMs()
  return {
    name: 'detect-lost-workers',
    periodMs: 2_000,
    topics: [],
    run: async () => {
      if (deps.clock.monotonicMs() - listeningSinceMs >= WORKER_LEASE_MS) await pass(deps)
      return null
    },
  }
}

async function pass(deps: TransitionDeps): Promise<void> {
  const lost = await deps.db.asSystem((q) => workers.lost(q, deps.clock.now()))
  for (const worker of lost) {
    const open = await deps.db.asSystem((q) => runs.ofWorker(q, worker.id))
    for (const { run_id, sandbox_id } of open) {
      const message = `worker lost: '${worker.name}' did not answer for ${String(WORKER_LEASE_MS / 1000)} s`
      const cause = { actor: SYSTEM, code: 'worker_lost', message } as const
      await transition(deps, { sandbox_id, run_id, event: 'worker_lost', outcome: { kind: 'lost', message }, cause })
    }
  }
}
