/**
 * Organizations whose plan stops their sandboxes when the included hours are used up. `loops/enforce-hard-limits.ts`
 * uses these queries.
 */
import type { OrgId } from '../../domain/ids.ts'
import type { IncludedHours, IncludedHoursName } from '../../domain/orgs/quota.ts'
import { NIL_UUID } from '../../lib/uuid.ts'
import type { Queryable } from '../postgres/database.ts'

/** SQL over a row of `org_limits`: whether used up hours stop the organization's sandboxes. `hasHardLimit` is the same rule. */
export const HAS_HARD_LIMIT =
  '(hard_cap AND (included_vcpu_hours IS NOT NULL OR included_memory_gib_hours IS NOT NULL))'

/** An organization with a hard limit and active runs. `vcpus` and `memory_mib` are the sums of its started runs. */
export type HardLimitedOrg = IncludedHours & {
  readonly org_id: OrgId
  readonly vcpus: number
  readonly memory_mib: number
}

/** Organizations with a hard limit and active runs, after a given one, in the order of their ids. */
export async function findHardLimitedOrgsWithRuns(
  q: Queryable,
  after: OrgId | null,
  limit: number,
): Promise<readonly HardLimitedOrg[]> {
  const { rows } = await q.query<HardLimitedOrg>({
    name: 'includedHours.findHardLimitedOrgsWithRuns',
    text: `SELECT l.org_id, l.hard_cap, l.included_vcpu_hours, l.included_memory_gib_hours, a.vcpus, a.memory_mib
           FROM org_limits l, LATERAL (
             SELECT count(*) AS active, coalesce(sum(vcpus) FILTER (WHERE started_at IS NOT NULL), 0) AS vcpus,
               coalesce(sum(memory_mib) FILTER (WHERE started_at IS NOT NULL), 0) AS memory_mib
             FROM runs r WHERE r.org_id = l.org_id AND r.ended_at IS NULL AND r.stop_requested_at IS NULL) a
           WHERE l.org_id > $1 AND a.active > 0 AND ${HAS_HARD_LIMIT}
           ORDER BY l.org_id LIMIT $2`,
    values: [after ?? NIL_UUID, limit],
  })
  return rows
}

/** Whether an organization has an event of this UTC month that reports the included hours of `name` as exhausted. */
export async function hasExhaustedEvent(
  q: Queryable,
  org: OrgId,
  name: IncludedHoursName,
  now: Date,
): Promise<boolean> {
  const { rowCount } = await q.query({
    name: 'includedHours.hasExhaustedEvent',
    text: `SELECT FROM events WHERE org_id = $1 AND event_type = 'pool_exhausted'
             AND timestamp >= date_trunc('month', $3::timestamptz, 'UTC') AND payload ->> 'pool' = $2 LIMIT 1`,
    values: [org, name, now],
  })
  return rowCount > 0
}
