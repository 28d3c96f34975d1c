import type { TransitionDeps } from '../control/sandboxes/transition.ts'
import type { Log } from '../lib/log.ts'
import * as runsToStop from '../store/sandboxes/runs-to-stop.ts'
import type { Loop } from './loop.ts'
import { stopRuns, type RunsToStop } from './stop-runs.ts'

type DeadlineDeps = TransitionDeps & { readonly log: Log }

/**
 * Stops runs that reach their `max_duration_secs` or their organization's uptime limit, within moments of that time.
 */
export function enforceDeadlines(deps: DeadlineDeps): Loop {
  return { name: 'enforce-deadlines', periodMs: 1_000, topics: [], run: (signal) => pass(deps, signal) }
}

async function pass(deps: DeadlineDeps, signal: AbortSignal): Promise<number | null> {
  const now = deps.clock.now()
  const overdue: RunsToStop<runsToStop.RunPastDeadline> = {
    read: (q, page) => runsToStop.pastDeadline(q, now, page),
    causeOf: ({ is_by_org }) => ({ code: is_by_org ? 'max_uptime' : 'max_duration' }),
  }
  const failed = await stopRuns(deps, overdue, signal)
  if (failed > 0) return null // these runs are still overdue: an immediate pass would be a busy loop
  const next = await deps.db.asSystem((q) => runsToStop.nextDeadline(q))
  return next === null ? null : Math.max(0, next.getTime() - deps.clock.now().getTime())
}
