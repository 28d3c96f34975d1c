import type { OrgActor, Caller } from '../../domain/orgs/caller.ts'
import type { OrgId } from '../../domain/ids.ts'
import type { SetLimits } from '../../domain/orgs/plan.ts'
import { Problem } from '../../domain/problem.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import { exhaustedHours, hoursUsed, isIncludedAmount, type LimitName, type Limits } from '../../domain/orgs/quota.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as plans from '../../store/orgs/plans.ts'
import * as quotas from '../../store/orgs/quotas.ts'
import { notifyAtCommit } from '../../store/postgres/notification-connection.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import { QUOTAS_TOPIC } from '../topics.ts'

/** The limits in force and the current usage, as `QuotaUsage` of openapi.json. */
export type QuotaReport = Limits & {
  readonly hard_cap: boolean
  readonly is_suspended: boolean
  readonly pool_exhausted: boolean
  readonly total_sandboxes: number
  readonly concurrent_ephemeral_running: number
  readonly concurrent_persistent_running: number
  readonly vcpu_hours_used: number
  readonly memory_gib_hours_used: number
}

/** The limits and the current usage of the caller's organization. */
export async function getQuotas(
  deps: Pick<BaseDeps, 'db' | 'clock'>,
  { org_id }: Pick<Caller, 'org_id'>,
): Promise<QuotaReport> {
  const how = { now: deps.clock.now(), counts: 'all' } as const
  const usage = await deps.db.asOrg(org_id, (q) => quotas.readUsage(q, org_id, how))
  const {
    slug: _slug,
    plan: _plan,
    quota_overrides: _overrides,
    vcpu_ms: _vcpu,
    memory_mib_ms: _memory,
    ...shown
  } = usage
  return {
    ...shown,
    pool_exhausted: exhaustedHours(usage, usage).length > 0,
    vcpu_hours_used: hoursUsed('included_vcpu_hours', usage),
    memory_gib_hours_used: hoursUsed('included_memory_gib_hours', usage),
  }
}

/**
 * Sets a limit of an organization, which overrides the plan's limit. Null means unlimited. Usage that already exceeds
 * the limit stays. Throws `invalid_request` for a storage limit that a worker can't enforce, and for an unlimited
 * included amount on a plan with prices, which charges whatever no number includes.
 */
export async function setQuota(
  deps: WriteDeps,
  acting: OrgActor,
  { limit, value }: { readonly limit: LimitName; readonly value: number | null },
): Promise<void> {
  if (value === null && isIncludedAmount(limit) && !(await readQuotaUsage(deps, acting.org_id)).hard_cap)
    throw invalidRequest(
      limit,
      'unlimited',
      'a whole number, because the plan has prices and charges what is not included',
    )
  await changeOverrides(deps, acting, (from) => ({ ...from, [limit]: value }))
}

/** Removes an override, so that the plan's limit applies again. May be repeated. */
export function clearQuota(deps: WriteDeps, acting: OrgActor, limit: LimitName): Promise<void> {
  return changeOverrides(deps, acting, (from) =>
    Object.fromEntries(Object.entries(from).filter(([name]) => name !== limit)),
  )
}

async function changeOverrides(
  deps: WriteDeps,
  acting: OrgActor,
  change: (from: SetLimits) => SetLimits,
): Promise<void> {
  await deps.db.transaction('system', async (tx) => {
    const terms = await plans.lockPlanSettings(tx, acting.org_id)
    const from = terms.quota_overrides
    const overrides = change(from)
    if (areLimitsEqual(overrides, from)) return
    await requireEnforceableLimits(tx, overrides)
    await plans.savePlanSettings(tx, acting.org_id, { ...terms, quota_overrides: overrides, now: deps.clock.now() })
    await recordEvent(deps, tx, { ...acting, event_type: 'quota_changed', payload: { overrides, from } })
    await notifyAtCommit(tx, [QUOTAS_TOPIC])
  })
}

/** Whether two sets of limits are equal. */
export function areLimitsEqual(one: SetLimits, other: SetLimits): boolean {
  const text = (limits: SetLimits): string =>
    JSON.stringify(Object.entries(limits).toSorted(([a], [b]) => (a < b ? -1 : 1)))
  return text(one) === text(other)
}

/** Throws `invalid_request` for a storage limit unless every known worker can enforce it on volumes. */
export async function requireEnforceableLimits(q: Queryable, limits: SetLimits): Promise<void> {
  const seen = limits.max_total_storage_gib ?? null
  if (seen === null) return
  const [worker] = await quotas.workersWithoutCaps(q)
  if (worker === undefined) return
  const why = `worker '${worker.name}' can't enforce it on volumes: ${worker.how}`
  throw new Problem('invalid_request', {
    message: `max_total_storage_gib can't be enforced: ${why}`,
    details: { field: 'max_total_storage_gib', seen, accepted: 'unlimited', why },
  })
}

/** The limits in force and the current usage of any organization, for the operator. */
export function readQuotaUsage(deps: Pick<BaseDeps, 'db' | 'clock'>, org: OrgId): Promise<quotas.QuotaUsageRow> {
  const how = { now: deps.clock.now(), counts: 'all' } as const
  return deps.db.asSystem((q) => quotas.readUsage(q, org, how))
}
