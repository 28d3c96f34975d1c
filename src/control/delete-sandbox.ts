import type { Caller } from '../domain/caller.ts'
import * as events from '../store/events.ts'
import * as sandboxes from '../store/sandboxes.ts'
import type { ControlDeps } from './deps.ts'
import { getSandbox, type SandboxRef } from './read-sandboxes.ts'
import { transitionIn } from './transition.ts'

/**
 * Removes a sandbox: its name and slug are free and no route shows it as soon as this resolves; one that runs is
 * asked to stop, which is not waited for. Deleting it twice at once succeeds. Throws `sandbox_not_found`.
 */
export async function deleteSandbox(deps: ControlDeps, caller: Caller, ref: SandboxRef): Promise<void> {
  const sandbox = await getSandbox(deps, caller, ref)
  const now = deps.clock.now()
  const topics: string[] = []
  await deps.db.transaction('system', async (tx) => {
    topics.length = 0
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
    await events.insertMany(tx, [
      {
        id: deps.uuids.next(),
        org_id: caller.org_id,
        timestamp: now,
        event_type: 'sandbox_deleted',
        sandbox_id: sandbox.id,
        actor: caller.actor,
        payload: { sandbox_id: sandbox.id, name: sandbox.name, slug: sandbox.slug },
      },
    ])
  })
  deps.wake.publish([...topics, `sandbox:${sandbox.id}`])
}
