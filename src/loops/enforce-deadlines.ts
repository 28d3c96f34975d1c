import { transitionEach } from '../control/transition-each.ts'
import { SYSTEM, type TransitionDeps } from '../control/transition.ts'
import type { Log } from '../lib/log.ts'
import * as runs from '../store/runs.ts'
import type { Loop } from './loop.ts'

const PASS_LIMIT = 500

type DeadlineDeps = TransitionDeps & { readonly log: Log }

/** Asks runs to stop that reached their `max_duration_secs` or their organization's limit, within a moment of that time. */
export function enforceDeadlines(deps: DeadlineDeps): Loop {
  return { name: 'enforce-deadlines', periodMs: 1_000, topics: [], run: (signal) => pass(deps, signal) }
}

async function pass(deps: DeadlineDeps, signal: AbortSignal): Promise<number | null> {
  const now = deps.clock.now()
  const overdue = await deps.db.asSystem((q) => runs.overdue(q, now, PASS_LIMIT))
  const stops = overdue.map(({ run_id, sandbox_id, is_by_org }) => {
    const cause = { actor: SYSTEM, code: is_by_org ? 'max_uptime' : 'max_duration' } as const
    return { sandbox_id, run_id, event: 'stop_requested', cause } as const
  })
  const failed = await transitionEach(deps, stops, signal)
  if (failed > 0) return null // these are overdue still: at once again would be a tight loop
  const next = await deps.db.asSystem((q) => runs.nextDeadline(q))
  return next === null ? null : Math.max(0, next.getTime() - deps.clock.now().getTime())
}
