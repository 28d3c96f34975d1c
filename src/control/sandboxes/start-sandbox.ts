import type { Caller } from '../../domain/orgs/caller.ts'
import type { IfMatch } from '../../domain/requests/etag.ts'
import { asId, type RunId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { quotaProblem } from '../../domain/orgs/quota-problem.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import * as runs from '../../store/sandboxes/runs.ts'
import type { ControlDeps } from '../deps.ts'
import type { IdempotentAttempt } from '../requests/idempotent-attempt.ts'
import { getSandbox, type SandboxRef } from './read-sandboxes.ts'
import { withIfMatch } from './if-match.ts'
import { transition } from './transition.ts'
import { acquireWait, waitWhileStarting } from './wait-for-sandbox.ts'

export type StartOptions = {
  /** null answers at once. */
  readonly waitMs: number | null
  /** Aborted when the client left; null where nothing is waited for. */
  readonly signal: AbortSignal | null
  /** With an Idempotency-Key: the run gets its id, so that no try starts another. */
  readonly once?: IdempotentAttempt | null
  readonly ifMatch?: IfMatch | null
}

/**
 * Admits a start and optionally waits until the sandbox runs or the budget is over. Starting one that is starting
 * joins that start; a retry joins what its first try started, over or not. Throws `sandbox_not_found`,
 * `invalid_state_transition`, `precondition_failed`, `quota_exceeded`, `org_suspended`, `rate_limited`.
 */
export async function startSandbox(
  deps: ControlDeps,
  caller: Caller,
  ref: SandboxRef,
  options: StartOptions,
): Promise<Sandbox> {
  const releaseWait = options.waitMs === null ? null : acquireWait(deps)
  try {
    const sandbox = await getSandbox(deps, caller, ref)
    await admitStart(deps, caller, sandbox, options)
    const id = { id: sandbox.id }
    if (options.waitMs === null) return await getSandbox(deps, caller, id)
    return await waitWhileStarting(deps, caller, sandbox, { waitMs: options.waitMs, signal: options.signal })
  } finally {
    releaseWait?.()
  }
}

async function admitStart(
  deps: ControlDeps,
  caller: Caller,
  sandbox: Sandbox,
  { once = null, ifMatch = null }: StartOptions,
): Promise<void> {
  const opens = once === null ? null : asId<RunId>(once.id)
  const isDone = async (): Promise<boolean> =>
    opens !== null && (await deps.db.asOrg(caller.org_id, (q) => runs.existed(q, sandbox.id, opens)))
  if (once?.isRetry === true && (await isDone())) return
  const answer = await transition(withIfMatch(deps, sandbox, ifMatch), {
    sandbox_id: sandbox.id,
    run_id: null,
    event: 'start_admitted',
    cause: { actor: caller.actor, code: 'requested' },
    ...(opens === null ? {} : { opens }),
  })
  if (answer.kind === 'absent') throw new Problem('sandbox_not_found')
  if (answer.kind === 'refused') throw quotaProblem(answer.refusal, answer.slug)
  if (answer.kind === 'volumes_gone') throw volumesGone(answer.names)
  if (answer.kind === 'stale' && answer.status !== 'starting' && !(await isDone()))
    throw invalidStateTransition(answer.status, ['created', 'stopped', 'failed', 'starting'])
}

function volumesGone(names: readonly string[]): Problem {
  const told = names.map((name) => `'${name}'`).join(', ')
  return new Problem('invalid_state_transition', {
    message: `invalid state transition: it mounts volumes that were deleted: ${told}`,
    details: { field: 'spec.mounts', seen: names, accepted: 'a sandbox whose volumes are active; create another' },
  })
}

/** The refusal of an operation that the sandbox's status does not allow. */
export function invalidStateTransition(seen: string, accepted: readonly string[]): Problem {
  return new Problem('invalid_state_transition', { details: { field: 'status', seen, accepted } })
}
