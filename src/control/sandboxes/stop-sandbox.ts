import type { Caller } from '../../domain/orgs/caller.ts'
import { asId, type RunId } from '../../domain/ids.ts'
import { isActive } from '../../domain/sandboxes/lifecycle.ts'
import { Problem } from '../../domain/problem.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as restarts from '../../store/sandboxes/restarts.ts'
import type { FoundSummary } from '../../store/sandboxes/sandboxes.ts'
import type { IdempotentAttempt } from '../requests/idempotency.ts'
import { getSandbox, getSummary, type SandboxReader, type SandboxRef } from './read-sandboxes.ts'
import { ifMatchPrecondition, type Conditions, type Precondition } from './if-match.ts'
import { invalidStateTransition } from './start-sandbox.ts'
import { moveSandbox, type TransitionDeps, type TransitionQueue } from './transitions/transition.ts'
import type { TransitionAnswer } from './transitions/transition-step.ts'

export type StopOptions = Conditions & {
  /** Present if the request has an Idempotency-Key. A retry stops the run of the first attempt, never a later run. */
  readonly attempt?: IdempotentAttempt | null
}

/**
 * Asks a sandbox to stop and answers at once, usually with the status `stopping`. Stopping a stopping sandbox succeeds. It also ends
 * the restart policy until the next start, if the sandbox waits for its restart or stops for a drain.
 * Throws `sandbox_not_found` and `precondition_failed`. Throws `invalid_state_transition` if the sandbox is not active.
 */
export async function stopSandbox(
  deps: TransitionDeps & TransitionQueue & SandboxReader,
  caller: Caller,
  ref: SandboxRef,
  options: StopOptions = {},
): Promise<Sandbox> {
  let sandbox = await getSummary(deps, caller, ref)
  let answer = await requestStop(deps, caller, sandbox, options)
  const notedRun = options.attempt?.savedNote ?? null
  // A later run has begun since the sandbox was read, such as one of its restart policy.
  if (answer.kind === 'stale' && notedRun === null && isOtherRun(answer.run_id, sandbox.run_id)) {
    sandbox = await getSummary(deps, caller, { id: sandbox.id })
    answer = await requestStop(deps, caller, sandbox, options)
  }
  if (answer.kind === 'absent') throw new Problem('sandbox_not_found')
  // If the retry found a note, a stale answer means that the first attempt's run is over or stopping, as requested.
  if (answer.kind === 'stale' && answer.status !== 'stopping' && notedRun === null) {
    throw invalidStateTransition(answer.status, ['starting', 'running', 'stopping'])
  }
  return getSandbox(deps, caller, { id: sandbox.id })
}

function isOtherRun(open: RunId | null, latest: RunId | null): boolean {
  return open !== null && open !== latest
}

/** Asks the run to stop that a sandbox had when it was read or, without an Idempotency-Key, any run. */
async function requestStop(
  deps: TransitionDeps & TransitionQueue,
  caller: Caller,
  sandbox: FoundSummary,
  { attempt = null, ...conditions }: StopOptions,
): Promise<TransitionAnswer> {
  const notedRun = attempt?.savedNote ?? null
  const isToNote = attempt !== null && notedRun === null
  const noteRun = async (q: Queryable): Promise<void> => {
    if (!isToNote || sandbox.run_id === null) return
    if (isActive(sandbox.status) || (await restarts.isPending(q, sandbox.id))) await attempt.saveNote(q, sandbox.run_id)
  }
  // A retry that finds a note does not check `If-Match` again. The note proves that the first attempt passed the check.
  const check = notedRun === null ? ifMatchPrecondition(sandbox, conditions) : null
  const checkAndNote: Precondition = async (tx) => {
    await check?.(tx)
    await noteRun(tx)
  }
  if (isToNote && check === null) await deps.db.asOrg(caller.org_id, noteRun)
  const request = {
    sandbox_id: sandbox.id,
    run_id: notedRun !== null ? asId<RunId>(notedRun) : attempt === null ? null : sandbox.run_id,
    event: 'stop_requested',
    cause: { actor: caller.actor, code: 'requested' },
  } as const
  return moveSandbox(deps, request, check === null ? null : checkAndNote)
}
