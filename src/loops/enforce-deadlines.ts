import { SYSTEM, transition, type TransitionDeps } from '../control/transition.ts'
import * as runs from '../store/runs.ts'
import type { Loop } from './loop.ts'

const PASS_LIMIT = 500

/** Asks runs that reached their `max_duration_secs` to stop, within a moment of that time. */
export function enforceDeadlines(deps: TransitionDeps): Loop {
  return { name: 'enforce-deadlines', periodMs: 1_000, topics: [], run: () => pass(deps) }
}

async function pass(deps: TransitionDeps): Promise<number | null> {
  const now = deps.clock.now()
  const overdue = await deps.db.asSystem((q) => runs.overdue(q, now, PASS_LIMIT))
  for (const { run_id, sandbox_id } of overdue) {
    const cause = { actor: SYSTEM, code: 'max_duration' } as const
    await transition(deps, { sandbox_id, run_id, event: 'stop_requested', cause })
  }
  const next = await deps.db.asSystem((q) => runs.nextDeadline(q))
  return next === null ? null : Math.max(0, next.getTime() - deps.clock.now().getTime())
}
