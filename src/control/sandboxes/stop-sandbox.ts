import type { Caller } from '../../domain/orgs/caller.ts'
import type { IfMatch } from '../../domain/requests/etag.ts'
import { asId, type RunId } from '../../domain/ids.ts'
import { isActive } from '../../domain/sandboxes/lifecycle.ts'
import { Problem } from '../../domain/problem.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import type { ControlDeps } from '../deps.ts'
import type { IdempotentAttempt } from '../requests/idempotent-attempt.ts'
import { getSandbox, type SandboxRef } from './read-sandboxes.ts'
import { lockIfMatch } from './if-match.ts'
import { invalidStateTransition } from './start-sandbox.ts'
import { transition } from './transition.ts'

export type StopOptions = {
  /** With an Idempotency-Key: the run that the first try was about is stopped, and no later one. */
  readonly once?: IdempotentAttempt | null
  readonly ifMatch?: IfMatch | null
}

/**
 * Asks for a sandbox's stop and answers at once, `stopping` as a rule. Stopping one that is stopping succeeds.
 * Throws `sandbox_not_found`, `precondition_failed` and, for one that does not run, `invalid_state_transition`.
 */
export async function stopSandbox(
  deps: ControlDeps,
  caller: Caller,
  ref: SandboxRef,
  { once = null, ifMatch = null }: StopOptions = {},
): Promise<Sandbox> {
  const sandbox = await getSandbox(deps, caller, ref)
  const noted = once?.noted ?? null
  const isDemanded = ifMatch !== null && noted === null
  const isToNote = once !== null && noted === null && isActive(sandbox.status)
  const note = async (q: Queryable): Promise<void> => {
    if (isToNote && sandbox.run_id !== null) await once.note(q, sandbox.run_id)
  }
  // A retry that finds a note looks at no demand any more: nothing is noted before the demand is met.
  const fence = async (tx: Queryable): Promise<void> => {
    await lockIfMatch(tx, sandbox, ifMatch)
    await note(tx)
  }
  if (isToNote && !isDemanded) await deps.db.asOrg(caller.org_id, note)
  const answer = await transition(isDemanded ? { ...deps, fence } : deps, {
    sandbox_id: sandbox.id,
    run_id: noted !== null ? asId<RunId>(noted) : once === null ? null : sandbox.run_id,
    event: 'stop_requested',
    cause: { actor: caller.actor, code: 'requested' },
  })
  if (answer.kind === 'absent') throw new Problem('sandbox_not_found')
  // The run that the first try was about is over, or on its way: that is what was asked for.
  if (answer.kind === 'stale' && answer.status !== 'stopping' && noted === null) {
    throw invalidStateTransition(answer.status, ['starting', 'running', 'stopping'])
  }
  return getSandbox(deps, caller, { id: sandbox.id })
}
