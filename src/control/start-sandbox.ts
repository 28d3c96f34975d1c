import type { Caller } from '../domain/caller.ts'
import { Problem } from '../domain/problem.ts'
import { quotaProblem } from '../domain/quota-problem.ts'
import type { Sandbox } from '../domain/sandbox.ts'
import type { ControlDeps } from './deps.ts'
import { getSandbox, type SandboxRef } from './read-sandboxes.ts'
import { transition } from './transition.ts'
import { takeWait, waitWhileStarting } from './wait-for-run.ts'

/**
 * Admits a start and optionally waits until the sandbox runs or the budget is over. Starting one that is starting
 * joins that start. Throws `sandbox_not_found`, `invalid_state_transition`, `quota_exceeded`, `org_suspended`, `rate_limited`.
 */
export async function startSandbox(
  deps: ControlDeps,
  caller: Caller,
  ref: SandboxRef,
  options: { readonly waitMs: number | null; readonly signal: AbortSignal },
): Promise<Sandbox> {
  const giveBack = options.waitMs === null ? null : takeWait(deps)
  try {
    const sandbox = await getSandbox(deps, caller, ref)
    const answer = await transition(deps, {
      sandbox_id: sandbox.id,
      run_id: null,
      event: 'start_admitted',
      cause: { actor: caller.actor, code: 'requested' },
    })
    if (answer.kind === 'absent') throw new Problem('sandbox_not_found')
    if (answer.kind === 'refused') throw quotaProblem(answer.refusal, answer.slug)
    if (answer.kind === 'volumes_gone') throw volumesGone(answer.names)
    if (answer.kind === 'stale' && answer.status !== 'starting') {
      throw wrongState(answer.status, ['created', 'stopped', 'failed', 'starting'])
    }
    const id = { id: sandbox.id }
    if (options.waitMs === null) return await getSandbox(deps, caller, id)
    return await waitWhileStarting(deps, caller, sandbox, { waitMs: options.waitMs, signal: options.signal })
  } finally {
    giveBack?.()
  }
}

function volumesGone(names: readonly string[]): Problem {
  const told = names.map((name) => `'${name}'`).join(', ')
  return new Problem('invalid_state_transition', {
    message: `invalid state transition: it mounts volumes that were deleted: ${told}`,
    details: { field: 'spec.mounts', seen: names, accepted: 'a sandbox whose volumes are active; create another' },
  })
}

/** The refusal of an operation that the sandbox's status does not allow. */
export function wrongState(seen: string, accepted: readonly string[]): Problem {
  return new Problem('invalid_state_transition', { details: { field: 'status', seen, accepted } })
}
