import type { RunId, SandboxId } from '../ids.ts'
import type { RunOutcome } from '../sandboxes/run.ts'

/** What `decide` needs to know of a run that is wanted. */
export type DesiredRunState = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly desired_status: 'running' | 'stopped'
  readonly grace_ms: number
}

/** What `decide` needs to know of a run that the driver holds. */
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
 * What a worker must do so that what it holds becomes what is wanted. A run that is not wanted is removed, whatever it
 * does: it was given away, or its end is known. An ended run that is wanted stays as it is until its end was taken in,
 * but for a start that was cut short: it is begun anew. A run starts only when no other run of its sandbox is held: both
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
    const { run_id, desired_status: desired, grace_ms } = run
    const phase = heldById.get(run_id)?.phase
    if (desired === 'running' && isCancelledStart(heldById.get(run_id)?.outcome)) return [{ kind: 'remove', run_id }]
    // A run that is stopping may be so by a worker that died in the middle: asking again is harmless, not asking is for ever.
    if (desired === 'stopped')
      return phase === undefined || phase === 'ended' ? [] : [{ kind: 'stop', run_id, grace_ms }]
    return phase === undefined && !heldSandboxes.has(run.sandbox_id) ? [{ kind: 'start', run_id }] : []
  })
  return [...removals, ...rest]
}

/**
 * What a worker says that it holds: runs that are to be stopped and were never begun, or were cut short, are over. It must
 * say so only then: until it knows that a stop is wanted, an answer may be on its way by which it begins them.
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

/** Whether an end says only that the worker gave a start up, as it does when it shuts down: no failure of the sandbox. */
export function isCancelledStart(outcome: RunOutcome | undefined): boolean {
  return outcome?.kind === 'start_failed' && outcome.reason === 'cancelled'
}
