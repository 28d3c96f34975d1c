import type { DesiredRun, SyncAnswer } from '../../contract/workers/worker-protocol.ts'

/**
 * The desired runs after an answer. `before` are those of the `known_desired_version` of its report. `stop` changes a run that must
 * stop.
 */
export function applyRunChanges<Run extends { readonly run_id: string }>(
  before: readonly Run[],
  { desired_runs, changes_only }: { readonly desired_runs: readonly Run[] | null } & Pick<SyncAnswer, 'changes_only'>,
  stop: (run: Run) => Run,
): readonly Run[] {
  if (desired_runs === null) return before
  if (changes_only === undefined) return desired_runs
  const stopping = new Set<string>(changes_only.stopping_runs)
  const replaced = new Set<string>([...changes_only.gone_runs, ...desired_runs.map(({ run_id }) => run_id)])
  const kept = before.filter(({ run_id }) => !replaced.has(run_id))
  return [...kept.map((run) => (stopping.has(run.run_id) ? stop(run) : run)), ...desired_runs]
}

/** The run when it must stop. It then needs no credentials any more. */
export function markStopping({ secrets: _secrets, interception: _interception, ...run }: DesiredRun): DesiredRun {
  return { ...run, desired_status: 'stopped', registry_auth: null }
}
