import type { OrgId } from '../../domain/ids.ts'
import { hoursUsed, type IncludedHoursName, type IncludedHours, type ComputeUse } from '../../domain/orgs/quota.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import * as includedHours from '../../store/usage/included-hours.ts'
import type { ControlDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import { SYSTEM_ACTOR } from '../sandboxes/transition.ts'

/** Leaves the event that a pool is exhausted, once in a UTC month, however often and from how many processes it is called. */
export async function recordHoursExhausted(
  deps: Pick<ControlDeps, 'db' | 'clock' | 'uuids'>,
  org_id: OrgId,
  exhausted: { readonly pool: IncludedHoursName; readonly pools: IncludedHours; readonly use: ComputeUse },
): Promise<void> {
  const { pool, use } = exhausted
  await deps.db.transaction('system', async (tx) => {
    await orgs.lock(tx, org_id)
    if (await includedHours.hasExhaustedEvent(tx, org_id, pool, deps.clock.now())) return
    const payload = { pool, included_hours: exhausted.pools[pool] ?? 0, used_hours: hoursUsed(pool, use) }
    await recordEvent(deps, tx, { org_id, actor: SYSTEM_ACTOR, event_type: 'pool_exhausted', payload })
  })
}
