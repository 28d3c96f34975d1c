import type { RunId, SandboxId } from '../ids.ts'
import type { RunOutcome } from '../sandboxes/run.ts'

/** The part of a desired run that `decide` needs. */
export type DesiredRunState = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly desired_status: 'running' | 'stopped'
  readonly grace_ms: number
}

/** The part of a run on the driver that `decide` needs. */
export type HeldRun = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly phase: 'starting' | 'running' | 'stopping' | 'ended'
  readonly outcome?: RunOutcome
}

/** One step of a worker. Each step is idempotent for its run. */
export type WorkerAction =
  | { readonly kind: 'start'; readonly run_id: RunId }
  | { readonly kind: 'stop'; readonly run_id: RunId; readonly grace_ms: number }
  | { readonly kind: 'remove'; readonly run_id: RunId }

/**
 * The steps that turn the held runs into the desired runs. A held run that is not desired is removed in any phase: the
 * run was assigned to another worker, or its end is recorded. A desired run that has ended stays held until its end is
 * recorded. But a desired run whose start was cancelled is removed, and then started again. A run starts only when no
 * other run of its sandbox is held, because both would write to one disk. `later` runs are desired too, and nothing else is known of them.
 */
export function decide(
  desired: readonly DesiredRunState[],
  held: readonly HeldRun[],
  later: ReadonlySet<RunId>,
): readonly WorkerAction[] {
  const desiredById = new Map(desired.map((run) => [run.run_id, run]))
  const heldById = new Map(held.map((run) => [run.run_id, run]))
  const heldSandboxes = new Set(held.map((run) => run.sandbox_id))
  const removals = held
    .filter(({ run_id }) => !desiredById.has(run_id) && !later.has(run_id))
    .map(({ run_id }): WorkerAction => ({ kind: 'remove', run_id }))
  const rest = desired.flatMap((run): WorkerAction[] => {
    const { run_id, desired_status, grace_ms } = run
    const phase = heldById.get(run_id)?.phase
    if (desired_status === 'running' && isCancelledStart(heldById.get(run_id)?.outcome))
      return [{ kind: 'remove', run_id }]
    // The worker process that began the stop may have died since. A second stop is harmless, but without it the run
    // might never stop.
    if (desired_status === 'stopped')
      return phase === undefined || phase === 'ended' ? [] : [{ kind: 'stop', run_id, grace_ms }]
    return phase === undefined && !heldSandboxes.has(run.sandbox_id) ? [{ kind: 'start', run_id }] : []
  })
  return [...removals, ...rest]
}

/**
 * The runs that a worker reports: the held runs, and also desired runs that must stop and never began. Such a run was
 * never started, or its start was cancelled. It is reported as ended. Any other run that is not held is not reported,
 * because a delayed answer may still start it.
 */
export function withStoppedRuns<Run extends HeldRun>(
  desired: readonly DesiredRunState[],
  held: readonly Run[],
): readonly (Run | (HeldRun & { readonly phase: 'ended' }))[] {
  const heldById = new Map(held.map((run) => [run.run_id, run]))
  const over = desired.filter(({ run_id, desired_status: desired }) => {
    const run = heldById.get(run_id)
    return desired === 'stopped' && (run === undefined || isCancelledStart(run.outcome))
  })
  const ids = new Set(over.map(({ run_id }) => run_id))
  const stops = over.map(
    ({ run_id, sandbox_id }) => ({ run_id, sandbox_id, phase: 'ended', outcome: { kind: 'stopped' } }) as const,
  )
  return [...held.filter(({ run_id }) => !ids.has(run_id)), ...stops]
}

/**
 * Whether an outcome means only that the worker cancelled a start, for example at its shutdown. The sandbox did not
 * fail.
 */
export function isCancelledStart(outcome: RunOutcome | undefined): boolean {
  return outcome?.kind === 'start_failed' && outcome.reason === 'cancelled'
}
