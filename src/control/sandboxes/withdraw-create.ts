import type { Caller } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'
import { deleteTogether } from './delete-sandbox.ts'
import type { TransitionDeps } from './transitions/transition.ts'

/** Ends the transaction of a withdrawal whose sandbox does not start any more. */
class NotStarting extends Error {}

/**
 * Deletes a sandbox that a create waited for in vain, and then throws `start_timed_out`. Resolves without a change if
 * the sandbox is no longer starting: it ran in the last moment, or it ended.
 */
export async function withdrawCreate(
  deps: TransitionDeps,
  caller: Caller,
  sandbox: Sandbox,
  waitMs: number,
): Promise<void> {
  const requireStarting = async (tx: Queryable): Promise<void> => {
    const locked = await sandboxes.lock(tx, sandbox.org_id, sandbox.id)
    if (locked?.status !== 'starting' || locked.run_id !== sandbox.run_id) throw new NotStarting()
  }
  try {
    await deleteTogether(deps, [{ caller, sandbox }], requireStarting)
  } catch (error) {
    if (error instanceof NotStarting) return
    throw error
  }
  const { status_reason } = sandbox
  const why = status_reason === 'insufficient_capacity' ? ': no worker has the capacity' : ''
  throw new Problem('start_timed_out', {
    message: `start timed out: the sandbox did not run within ${String(waitMs / 1000)} s${why}; it was deleted`,
    details: {
      field: 'query.wait_timeout',
      seen: waitMs / 1000,
      accepted: 'a longer wait, or on_timeout=keep',
      status_reason,
    },
  })
}
