import type { OrgActor } from '../../domain/orgs/caller.ts'
import * as snapshots from '../../store/snapshots/snapshots.ts'
import type { BaseDeps, FenceDeps, WriteDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import { SNAPSHOTS_TOPIC } from '../topics.ts'
import { Problem } from '../../domain/problem.ts'
import { orgTransaction } from './org-transaction.ts'
import { getSnapshot, type SnapshotRef } from './read-snapshots.ts'

/**
 * Deletes a snapshot. Sandboxes that were made from it live on. Its data goes a little later, once no sandbox waits for its first
 * start from it. Throws `snapshot_not_found`.
 */
export async function deleteSnapshot(
  deps: WriteDeps & FenceDeps & Pick<BaseDeps, 'notifications'>,
  caller: OrgActor,
  ref: SnapshotRef,
): Promise<void> {
  const { org_id, actor } = caller
  const { id } = await getSnapshot(deps, caller, ref)
  await orgTransaction(deps, org_id, async (tx) => {
    const hidden = await snapshots.hide(tx, org_id, { id, now: deps.clock.now() })
    if (hidden === null) throw new Problem('snapshot_not_found')
    const payload = { snapshot_id: id, name: hidden.name ?? '' }
    await recordEvent(deps, tx, { org_id, actor, event_type: 'snapshot_deleted', payload })
  })
  deps.notifications.publish([SNAPSHOTS_TOPIC])
}
