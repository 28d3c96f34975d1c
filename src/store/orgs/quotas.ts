/** The limits of organizations and their current use. `domain/orgs/quota.ts` contains the rules for limits. */
import type { OrgId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import type { SetLimits } from '../../domain/orgs/plan.ts'
import { hasHardLimit, type Limits, type QuotaUsage } from '../../domain/orgs/quota.ts'
import type { Queryable } from '../postgres/database.ts'
import { HAS_HARD_LIMIT } from '../usage/included-hours.ts'
import { monthTotals } from '../usage/usage.ts'
import { countsOf } from './org-counts.ts'

/**
 * SQL over a row of `org_limits`: whether the organization has no limits that need counting. If so, one statement
 * without a lock admits its creates and starts.
 */
export const HAS_NO_COUNT_LIMITS = `(max_sandboxes IS NULL AND max_concurrent_ephemeral_running IS NULL
  AND max_concurrent_persistent_running IS NULL
  AND NOT ${HAS_HARD_LIMIT})`

/**
 * SQL: whether sizes are within the size limits of a row of `org_limits` named `l`. The sizes are SQL expressions too.
 * A null size means that none was requested.
 */
export function withinSizes(size: {
  readonly vcpus: string
  readonly memory_mib: string
  readonly disk_mib: string
  readonly max_duration_secs: string
}): string {
  return `(${size.vcpus} <= l.max_vcpus_per_sandbox) IS NOT FALSE
    AND (${size.memory_mib} <= l.max_memory_mib_per_sandbox) IS NOT FALSE
    AND (${size.disk_mib} <= l.max_disk_size_mib_per_sandbox) IS NOT FALSE
    AND (${size.max_duration_secs} <= l.max_uptime_minutes_per_sandbox * 60::bigint) IS NOT FALSE`
}

/** An organization with its limits and its current use of them. */
export type QuotaUsageRow = QuotaUsage & {
  readonly slug: string
  readonly plan: string
  readonly quota_overrides: SetLimits
}

type CountedRow = Limits &
  Pick<QuotaUsageRow, 'slug' | 'plan' | 'quota_overrides' | 'is_suspended' | 'hard_cap' | 'total_sandboxes'> &
  Pick<QuotaUsageRow, 'concurrent_ephemeral_running' | 'concurrent_persistent_running'>

/**
 * An organization's limits and its use of them at `now`. `decisive` adds up used hours only if they have a hard limit,
 * and leaves them zero otherwise. `all` always adds them up. Throws if the organization doesn't exist.
 */
export async function readUsage(
  q: Queryable,
  org: OrgId,
  how: { readonly now: Date; readonly counts: 'decisive' | 'all' },
): Promise<QuotaUsageRow> {
  const isAll = how.counts === 'all'
  const { rows } = await q.query<CountedRow>({
    name: 'quotas.readUsage',
    text: `SELECT o.slug, o.quota_overrides, l.plan, l.is_suspended, l.hard_cap, l.max_sandboxes, l.max_concurrent_ephemeral_running,
             l.max_concurrent_persistent_running, l.max_vcpus_per_sandbox, l.max_memory_mib_per_sandbox,
             l.max_disk_size_mib_per_sandbox, l.max_uptime_minutes_per_sandbox, l.max_total_storage_gib,
             l.max_public_previews, l.max_webhooks, l.included_vcpu_hours, l.included_memory_gib_hours, l.included_disk_gib_hours, l.included_storage_gib,
             c.sandboxes AS total_sandboxes, c.ephemeral_runs AS concurrent_ephemeral_running,
             c.persistent_runs AS concurrent_persistent_running
           FROM org_limits l JOIN orgs o ON o.id = l.org_id, LATERAL (${countsOf('$1')}) c
           WHERE l.org_id = $1`,
    values: [org],
  })
  const [row] = rows
  if (row === undefined) throw new Problem('org_not_found')
  const use = isAll || hasHardLimit(row) ? await monthTotals(q, org, how.now) : { vcpu_ms: 0n, memory_mib_ms: 0n }
  return { ...row, vcpu_ms: use.vcpu_ms, memory_mib_ms: use.memory_mib_ms }
}

/** Workers that reported that they can't enforce limits on volumes, each with its reason. */
export async function workersWithoutCaps(
  q: Queryable,
): Promise<readonly { readonly name: string; readonly how: string }[]> {
  const { rows } = await q.query<{ readonly name: string; readonly how: string }>({
    text: `SELECT name, coalesce(storage ->> 'how', '') AS how FROM workers
           WHERE NOT (storage ->> 'enforces_caps')::boolean ORDER BY name`,
  })
  return rows
}
