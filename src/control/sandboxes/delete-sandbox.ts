import type { Caller } from '../../domain/orgs/caller.ts'
import type { IfMatch } from '../../domain/requests/etag.ts'
import { deleteInTransaction } from './delete-batch.ts'
import type { ControlDeps } from '../deps.ts'
import { getSandbox, type SandboxRef } from './read-sandboxes.ts'
import { lockIfMatch } from './if-match.ts'

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
  if (ifMatch === null) {
    const removed = await deps.remove({ caller, sandbox })
    if (removed !== null) throw removed.error
    return
  }
  const topics: string[] = []
  await deps.db.transaction('system', async (tx) => {
    topics.length = 0
    await lockIfMatch(tx, sandbox, ifMatch)
    await deleteInTransaction(deps, { tx, topics }, [{ caller, sandbox }])
  })
  deps.notifications.publish(topics)
}
