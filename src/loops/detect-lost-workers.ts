import { transitionEach } from '../control/transition-each.ts'
import { SYSTEM, type TransitionDeps } from '../control/transition.ts'
import { WORKER_LEASE_MS } from '../domain/lease.ts'
import type { Log } from '../lib/log.ts'
import * as runs from '../store/runs.ts'
import * as workers from '../store/workers.ts'
import type { Loop } from './loop.ts'

type LostDeps = TransitionDeps & { readonly log: Log }

const PERIOD_MS = 2_000
/** A pass that comes so long after the one before says that this process or machine stood still in between. */
const ABSENCE_MS = WORKER_LEASE_MS / 2

/**
 * Calls the runs of a worker lost whose lease ended: by then the worker has destroyed them itself. A control plane
 * that was away has renewed no lease meanwhile, be it that it was not started, that its machine slept, or that its
 * database was out of reach; so nobody is called lost before it has listened for one lease's time without a break. The
 * same holds for a process that has just come to lead: the loop is made anew with each lead.
 */
export function detectLostWorkers(deps: LostDeps): Loop {
  let listeningSinceMs = deps.clock.monotonicMs()
  let lastPassAtMs = deps.clock.now().getTime()
  return {
    name: 'detect-lost-workers',
    periodMs: PERIOD_MS,
    topics: [],
    run: async (signal) => {
      const nowMs = deps.clock.now().getTime()
      if (nowMs - lastPassAtMs > ABSENCE_MS) listeningSinceMs = deps.clock.monotonicMs()
      lastPassAtMs = nowMs
      try {
        const lost = await deps.db.asSystem((q) => workers.lost(q, deps.clock.now()))
        if (deps.clock.monotonicMs() - listeningSinceMs >= WORKER_LEASE_MS) await callLost(deps, lost, signal)
      } catch (error) {
        listeningSinceMs = deps.clock.monotonicMs()
        throw error
      }
      return null
    },
  }
}

async function callLost(
  deps: LostDeps,
  lost: Awaited<ReturnType<typeof workers.lost>>,
  signal: AbortSignal,
): Promise<void> {
  for (const worker of lost) {
    const open = await deps.db.asSystem((q) => runs.ofWorker(q, worker.id))
    const why = worker.is_removed ? 'was removed' : `did not answer for ${String(WORKER_LEASE_MS / 1000)} s`
    const message = `worker lost: '${worker.name}' ${why}`
    const end = {
      event: 'worker_lost',
      outcome: { kind: 'lost', message },
      cause: { actor: SYSTEM, code: 'worker_lost', message },
    } as const
    await transitionEach(
      deps,
      open.map(({ run_id, sandbox_id }) => ({ sandbox_id, run_id, ...end })),
      signal,
    )
  }
}
