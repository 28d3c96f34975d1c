/** What runs took: days that were rolled up, and the runs that were not yet. Units times milliseconds, so that sums are exact. */
import type { OrgId } from '../domain/ids.ts'
import type { Queryable } from './database.ts'

/** What an organization's runs took in a UTC month so far. */
export type MonthTotal = { readonly org_id: OrgId; readonly vcpu_ms: bigint; readonly memory_mib_ms: bigint }

/**
 * What runs took in the UTC month of `now` up to `now`: rolled-up days, ended runs that are not rolled up, and open ones.
 * A row for each of `orgs`, zero when nothing ran.
 */
export async function monthTotals(q: Queryable, orgs: readonly OrgId[], now: Date): Promise<readonly MonthTotal[]> {
  const { rows } = await q.query<{ readonly org_id: OrgId; readonly vcpu_ms: string; readonly memory_mib_ms: string }>({
    name: 'usage.monthTotals',
    text: `WITH m AS (SELECT date_trunc('month', $2::timestamptz, 'UTC') AS from_at),
           parts AS (
             SELECT d.org_id, d.vcpu_ms, d.memory_mib_ms FROM usage_org_days d, m
             WHERE d.org_id = ANY($1::uuid[]) AND d.day >= (m.from_at AT TIME ZONE 'UTC')::date
               AND d.day <= ($2::timestamptz AT TIME ZONE 'UTC')::date
             UNION ALL
             SELECT r.org_id, t.ms * r.vcpus, t.ms * r.memory_mib FROM m, (
               SELECT org_id, vcpus, memory_mib, started_at, ended_at FROM runs
               WHERE org_id = ANY($1::uuid[]) AND ended_at IS NULL AND started_at IS NOT NULL
               UNION ALL
               SELECT org_id, vcpus, memory_mib, started_at, ended_at FROM runs
               WHERE org_id = ANY($1::uuid[]) AND ended_at IS NOT NULL AND started_at IS NOT NULL AND rolled_up_at IS NULL) r,
               LATERAL (SELECT greatest(0, round(1000 * extract(epoch FROM
                 least(coalesce(r.ended_at, $2), $2) - greatest(r.started_at, m.from_at)))) AS ms) t)
           SELECT w.org_id, coalesce(sum(p.vcpu_ms), 0)::text AS vcpu_ms,
             coalesce(sum(p.memory_mib_ms), 0)::text AS memory_mib_ms
           FROM unnest($1::uuid[]) AS w(org_id) LEFT JOIN parts p USING (org_id) GROUP BY w.org_id`,
    values: [orgs, now],
  })
  return rows.map(({ org_id, vcpu_ms, memory_mib_ms }) => {
    return { org_id, vcpu_ms: BigInt(vcpu_ms), memory_mib_ms: BigInt(memory_mib_ms) }
  })
}
