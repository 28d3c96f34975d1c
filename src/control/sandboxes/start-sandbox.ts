import type { Caller } from '../../domain/orgs/caller.ts'
import { asId, type RunId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { quotaProblem } from '../../domain/orgs/quota-problem.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import * as runs from '../../store/sandboxes/runs.ts'
import type { FoundSummary } from '../../store/sandboxes/sandboxes.ts'
import { traceWork, type TraceDeps } from '../requests/trace-work.ts'
import type { IdempotentAttempt } from '../requests/idempotency.ts'
import { getSandbox, getSummary, type SandboxReader, type SandboxRef } from './read-sandboxes.ts'
import { ifMatchPrecondition, type Conditions } from './if-match.ts'
import { moveSandbox, type TransitionDeps, type TransitionQueue } from './transitions/transition.ts'
import { acquireWaitPermit, waitWhileStarting, type WaitDeps } from './waits/wait-for-sandbox.ts'

type StartDeps = TraceDeps & TransitionDeps & TransitionQueue & SandboxReader & WaitDeps

export type StartOptions = Conditions & {
  /** How long to wait for the sandbox to run, in milliseconds. Null: answer at once. */
  readonly waitMs: number | null
  /** Aborted when the client disconnects. Null if the request does not wait. */
  readonly signal: AbortSignal | null
  /**
   * Present if the request has an Idempotency-Key. The run gets the attempt's `resourceId`, so that a retry starts no
   * second run.
   */
  readonly attempt?: IdempotentAttempt | null
  /** The span of the request, as a `traceparent`. Null or absent: the request is not traced. */
  readonly traceParent?: string | null
  /** Called with the bytes of the specification if the request starts a run, for which a worker must get all of them. */
  readonly onStart?: (specBytes: number) => void
}

/**
 * Starts a sandbox and optionally waits until it runs or the time is over. If the sandbox is already starting, the call
 * joins that start. A retry joins the run that its first attempt started, even if that run is over. Throws
 * `sandbox_not_found`, `invalid_state_transition`, `precondition_failed`, `quota_exceeded`, `org_suspended` and
 * `rate_limited`.
 */
export async function startSandbox(
  deps: StartDeps,
  caller: Caller,
  ref: SandboxRef,
  options: StartOptions,
): Promise<Sandbox> {
  const releaseWait = options.waitMs === null ? null : acquireWaitPermit(deps)
  try {
    const sandbox = await getSummary(deps, caller, ref)
    await admitStart(deps, caller, sandbox, options)
    const { waitMs, signal } = options
    const waited = waitMs === null ? null : await waitWhileStarting(deps, caller, sandbox.id, { waitMs, signal })
    return waited ?? (await getSandbox(deps, caller, { id: sandbox.id }))
  } finally {
    releaseWait?.()
  }
}

async function admitStart(
  deps: StartDeps,
  caller: Caller,
  sandbox: FoundSummary,
  { attempt = null, traceParent = null, onStart, ...conditions }: StartOptions,
): Promise<void> {
  const opens = attempt === null ? null : asId<RunId>(attempt.resourceId)
  const isDone = async (): Promise<boolean> =>
    opens !== null && (await deps.db.asOrg(caller.org_id, (q) => runs.existed(q, sandbox.id, opens)))
  if (attempt?.isRetry === true && (await isDone())) return
  const request = {
    sandbox_id: sandbox.id,
    run_id: null,
    event: 'start_admitted',
    cause: { actor: caller.actor, code: 'requested' },
    ...(opens === null ? {} : { opens }),
    ...(traceParent === null ? {} : { traceParent }),
  } as const
  const attributes = { 'sandyard.sandbox.id': sandbox.id, 'sandyard.org.id': sandbox.org_id }
  const answer = await traceWork(deps, { name: 'admission', traceParent, attributes, begunAt: null }, () =>
    moveSandbox(deps, request, ifMatchPrecondition(sandbox, conditions)),
  )
  if (answer.kind === 'moved') onStart?.(sandbox.spec_bytes ?? 0)
  if (answer.kind === 'absent') throw new Problem('sandbox_not_found')
  if (answer.kind === 'refused') throw quotaProblem(answer.refusal, answer.slug)
  if (answer.kind === 'volumes_gone') throw volumesGone(answer.names)
  if (answer.kind === 'stale' && answer.status !== 'starting' && !(await isDone()))
    throw invalidStateTransition(answer.status, ['created', 'stopped', 'failed', 'starting'])
}

function volumesGone(names: readonly string[]): Problem {
  const list = names.map((name) => `'${name}'`).join(', ')
  return new Problem('invalid_state_transition', {
    message: `invalid state transition: the sandbox mounts deleted volumes: ${list}`,
    details: { field: 'spec.mounts', seen: names, accepted: 'a sandbox whose volumes are active; create another one' },
  })
}

/** The problem for an operation that the sandbox's status does not allow. */
export function invalidStateTransition(seen: string, accepted: readonly string[]): Problem {
  return new Problem('invalid_state_transition', { details: { field: 'status', seen, accepted } })
}
