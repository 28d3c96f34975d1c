import type { SyncAnswer } from '../../contract/workers/worker-protocol.ts'

/** The desired runs after an answer. `before` are those of the `known_desired_version` of its report. */
export function applyRunChanges<Run extends { readonly run_id: string }>(
  before: readonly Run[],
  { desired_runs, changes_only }: { readonly desired_runs: readonly Run[] | null } & Pick<SyncAnswer, 'changes_only'>,
): readonly Run[] {
  if (desired_runs === null) return before
  if (changes_only === undefined) return desired_runs
  const replaced = new Set<string>([...changes_only.gone_runs, ...desired_runs.map(({ run_id }) => run_id)])
  return [...before.filter(({ run_id }) => !replaced.has(run_id)), ...desired_runs]
}
