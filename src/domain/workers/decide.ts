import type { RunId, SandboxId } from '../ids.ts'
import type { RunOutcome } from '../sandboxes/run.ts'

/** What `decide` needs to know about a desired run. */
export type DesiredRunState = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly desired_status: 'running' | 'stopped'
  readonly grace_ms: number
}

/** What `decide` needs to know about a run that the driver holds. */
export type HeldRun = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly phase: 'starting' | 'running' | 'stopping' | 'ended'
  readonly outcome?: RunOutcome
}

/** One step of a worker; each is idempotent for its run. */
export type WorkerAction =
  | { readonly kind: 'start'; readonly run_id: RunId }
  | { readonly kind: 'stop'; readonly run_id: RunId; readonly grace_ms: number }
  | { readonly kind: 'remove'; readonly run_id: RunId }

/**
 * The steps that make what a worker holds into what is desired. A run that is not desired is removed, whatever it does:
 * it was given to another worker, or its end is recorded. A desired run that has ended stays until its end is recorded,
 * except a cancelled start, which is begun again. A run starts only when no other run of its sandbox is held, because both
 * would write to one disk.
 */
export function decide(desired: readonly DesiredRunState[], held: readonly HeldRun[]): readonly WorkerAction[] {
  const desiredById = new Map(desired.map((run) => [run.run_id, run]))
  const heldById = new Map(held.map((run) => [run.run_id, run]))
  const heldSandboxes = new Set(held.map((run) => run.sandbox_id))
  const removals = held
    .filter((run) => !desiredById.has(run.run_id))
    .map(({ run_id }): WorkerAction => ({ kind: 'remove', run_id }))
  const rest = desired.flatMap((run): WorkerAction[] => {
    const { run_id, desired_status, grace_ms } = run
    const phase = heldById.get(run_id)?.phase
    if (desired_status === 'running' && isCancelledStart(heldById.get(run_id)?.outcome))
      return [{ kind: 'remove', run_id }]
    // The worker that began to stop it may have died since. Asking again is harmless; not asking would leave it for ever.
    if (desired_status === 'stopped')
      return phase === undefined || phase === 'ended' ? [] : [{ kind: 'stop', run_id, grace_ms }]
    return phase === undefined && !heldSandboxes.has(run.sandbox_id) ? [{ kind: 'start', run_id }] : []
  })
  return [...removals, ...rest]
}

/**
 * What a worker reports to hold: runs that are to stop, and were never begun or whose start was cancelled, are reported as
 * ended. It must not report so earlier: until it knows that a stop is desired, an answer on its way may have it begin them.
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

/** Whether an end says only that the worker gave up a start, as when it shuts down. The sandbox did not fail. */
export function isCancelledStart(outcome: RunOutcome | undefined): boolean {
  return outcome?.kind === 'start_failed' && outcome.reason === 'cancelled'
}
