import type { Caller } from '../domain/caller.ts'
import type { IfMatch } from '../domain/etag.ts'
import * as sandboxes from '../store/sandboxes.ts'
import type { ControlDeps } from './deps.ts'
import { getSandbox, type SandboxRef } from './read-sandboxes.ts'
import { holdIfMatch } from './require-match.ts'
import { tell } from './tell.ts'
import { transitionIn } from './transition.ts'

/**
 * Removes a sandbox: its name and slug are free and no route shows it as soon as this resolves; one that runs is
 * asked to stop, which is not waited for. Deleting it twice at once succeeds. Throws `sandbox_not_found`
 * and `precondition_failed`.
 */
export async function deleteSandbox(
  deps: ControlDeps,
  caller: Caller,
  ref: SandboxRef,
  ifMatch: IfMatch | null = null,
): Promise<void> {
  const sandbox = await getSandbox(deps, caller, ref)
  const now = deps.clock.now()
  const topics: string[] = []
  await deps.db.transaction('system', async (tx) => {
    topics.length = 0
    await holdIfMatch(tx, sandbox, ifMatch)
    const hidden = await sandboxes.hide(tx, sandbox.id, now)
    if (hidden === null) {
      await sandboxes.hideAtOnce(tx, sandbox.id, now)
      return
    }
    await transitionIn(
      deps,
      { tx, topics },
      {
        sandbox_id: sandbox.id,
        run_id: null,
        event: 'stop_requested',
        cause: { actor: caller.actor, code: 'deleted' },
      },
    )
    if (hidden.home_worker_id !== null) topics.push(`worker:${hidden.home_worker_id}`)
    const { org_id, actor } = caller
    const payload = { sandbox_id: sandbox.id, name: sandbox.name, slug: sandbox.slug }
    await tell(deps, tx, { org_id, actor, event_type: 'sandbox_deleted', payload })
  })
  deps.wake.publish([...topics, `sandbox:${sandbox.id}`])
}
