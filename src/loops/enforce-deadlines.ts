import type { MoveAllDeps } from '../control/sandboxes/transitions/transition-batches.ts'
import * as runsToStop from '../store/sandboxes/runs-to-stop.ts'
import { untilDueMs, type Loop } from './loop.ts'
import { stopRuns, type RunsToStop } from './stop-runs.ts'

/**
 * Stops runs that have lasted for their `max_duration_secs` or their organization's uptime limit. A stop is only
 * moments late, because a pass starts when the next run reaches its deadline.
 */
export function makeEnforceDeadlinesLoop(deps: MoveAllDeps): Loop {
  return { name: 'enforce-deadlines', periodMs: 1_000, topics: [], run: (signal) => pass(deps, signal) }
}

async function pass(deps: MoveAllDeps, signal: AbortSignal): Promise<number | null> {
  const now = deps.clock.now()
  const restMs = untilDueMs(await deps.db.asSystem((q) => runsToStop.nextDeadline(q)), now)
  if (restMs !== 0) return restMs
  const overdue: RunsToStop<runsToStop.RunPastDeadline> = {
    read: (q, page) => runsToStop.pastDeadline(q, now, page),
    causeOf: ({ is_by_org }) => ({ code: is_by_org ? 'max_uptime' : 'max_duration' }),
  }
  const failed = await stopRuns(deps, overdue, signal)
  return failed > 0 ? null : 0 // runs that could not be stopped are still overdue: an immediate pass would be a busy loop
}
