import type { Caller } from '../domain/caller.ts'
import { Problem } from '../domain/problem.ts'
import type { Sandbox } from '../domain/sandbox.ts'
import type { ControlDeps } from './deps.ts'
import { getSandbox, type SandboxRef } from './read-sandboxes.ts'
import { wrongState } from './start-sandbox.ts'
import { transition } from './transition.ts'

/**
 * Asks for a sandbox's stop and answers at once, `stopping` as a rule. Stopping one that is stopping succeeds.
 * Throws `sandbox_not_found` and, for one that does not run, `invalid_state_transition`.
 */
export async function stopSandbox(deps: ControlDeps, caller: Caller, ref: SandboxRef): Promise<Sandbox> {
  const sandbox = await getSandbox(deps, caller, ref)
  const answer = await transition(deps, {
    sandbox_id: sandbox.id,
    run_id: null,
    event: 'stop_requested',
    cause: { actor: caller.actor, code: 'requested' },
  })
  if (answer.kind === 'absent') throw new Problem('sandbox_not_found')
  if (answer.kind === 'stale' && answer.status !== 'stopping') {
    throw wrongState(answer.status, ['starting', 'running', 'stopping'])
  }
  return getSandbox(deps, caller, { id: sandbox.id })
}
