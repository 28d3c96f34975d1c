import { moveAll, type MoveAllDeps } from '../control/sandboxes/transitions/transition-batches.ts'
import type { TransitionCause } from '../control/sandboxes/transitions/transition-step.ts'
import { SYSTEM_ACTOR } from '../domain/orgs/caller.ts'
import type { RunId } from '../domain/ids.ts'
import type { Queryable } from '../store/postgres/database.ts'
import type { RunToStop, RunsToStopPage } from '../store/sandboxes/runs-to-stop.ts'

/** How many runs are read at once. */
const PAGE = 500

/** A query for the runs to stop, and the cause of their stop. */
export type RunsToStop<Run> = {
  readonly read: (q: Queryable, page: RunsToStopPage) => Promise<readonly Run[]>
  readonly causeOf: (run: Run) => Omit<TransitionCause, 'actor'>
}

/**
 * Requests the stop of all runs that `read` finds, page after page. A run whose request fails does not block later
 * runs. Resolves with the number of failed requests. May be repeated. Rejects for the same reasons as `moveAll`.
 */
export async function stopRuns<Run extends RunToStop>(
  deps: MoveAllDeps,
  { read, causeOf }: RunsToStop<Run>,
  signal: AbortSignal,
): Promise<number> {
  let failed = 0
  for (let after: RunId | null = null; ;) {
    const last: RunId | null = after
    const page: readonly Run[] = await deps.db.asSystem((q) => read(q, { after: last, limit: PAGE }))
    const stops = page.map((run) => {
      const { run_id, sandbox_id } = run
      return { run_id, sandbox_id, event: 'stop_requested', cause: { actor: SYSTEM_ACTOR, ...causeOf(run) } } as const
    })
    failed += await moveAll(deps, stops, { signal })
    after = page.at(-1)?.run_id ?? null
    if (after === null || page.length < PAGE) return failed
  }
}
