/** Plans, and the settings of an organization that the operator changes: plan, overrides, suspension. */
import type { OrgId } from '../../domain/ids.ts'
import type { Plan, SetLimits } from '../../domain/orgs/plan.ts'
import { NIL_UUID } from '../../lib/uuid.ts'
import type { Queryable } from '../postgres/database.ts'

/** The plans by name, with the number of organizations on each plan. */
export async function list(q: Queryable): Promise<readonly (Plan & { readonly orgs: number })[]> {
  const { rows } = await q.query<Plan & { readonly orgs: number }>({
    text: `SELECT name, limits, prices, (SELECT count(*) FROM orgs o WHERE o.plan = p.name) AS orgs FROM plans p ORDER BY name`,
  })
  return rows
}

/** One plan, or null. */
export async function find(q: Queryable, name: string): Promise<Plan | null> {
  const { rows } = await q.query<Plan>({
    text: 'SELECT name, limits, prices FROM plans WHERE name = $1',
    values: [name],
  })
  return rows[0] ?? null
}

/** Locks all plans until the transaction ends. Only one transaction at a time can change plans. */
export async function lockAll(tx: Queryable): Promise<void> {
  await tx.query({ text: `SELECT pg_advisory_xact_lock(hashtext('sandyard: plans'))` })
}

/** Creates a plan, or replaces the terms of an existing plan. */
export async function save(tx: Queryable, plan: Plan, now: Date): Promise<void> {
  await tx.query({
    text: `INSERT INTO plans (name, limits, prices, updated_at) VALUES ($1, $2, $3, $4)
           ON CONFLICT (name) DO UPDATE SET limits = excluded.limits, prices = excluded.prices, updated_at = excluded.updated_at`,
    values: [plan.name, JSON.stringify(plan.limits), plan.prices === null ? null : JSON.stringify(plan.prices), now],
  })
}

/** The organizations on a plan. */
export async function orgsOn(q: Queryable, name: string): Promise<readonly OrgId[]> {
  const { rows } = await q.query<{ readonly id: OrgId }>({
    text: 'SELECT id FROM orgs WHERE plan = $1 ORDER BY id',
    values: [name],
  })
  return rows.map(({ id }) => id)
}

/** What the operator sets for an organization. */
export type OrgPlanSettings = {
  readonly plan: string
  readonly quota_overrides: SetLimits
  readonly suspended_at: Date | null
}

/** Reads an organization's plan settings and locks the organization as `orgs.lock` does. Throws if it doesn't exist. */
export async function lockPlanSettings(tx: Queryable, org: OrgId): Promise<OrgPlanSettings> {
  const { rows } = await tx.query<OrgPlanSettings>({
    text: 'SELECT plan, quota_overrides, suspended_at FROM orgs WHERE id = $1 FOR NO KEY UPDATE',
    values: [org],
  })
  const [row] = rows
  if (row === undefined) throw new Error(`there is no organization ${org}`)
  return row
}

/** Writes the plan settings of a locked organization. */
export async function savePlanSettings(
  tx: Queryable,
  org: OrgId,
  terms: OrgPlanSettings & { readonly now: Date },
): Promise<void> {
  await tx.query({
    text: `UPDATE orgs SET plan = $2, quota_overrides = $3, suspended_at = $4, updated_at = $5 WHERE id = $1`,
    values: [org, terms.plan, JSON.stringify(terms.quota_overrides), terms.suspended_at, terms.now],
  })
}

/** An organization as `sandyard org list` shows it. */
export type OrgWithPlan = OrgPlanSettings & { readonly id: OrgId; readonly slug: string; readonly name: string }

/** Organizations with their plan settings, the oldest first, after a given one. */
export async function listOrgsWithPlans(
  q: Queryable,
  after: string | null,
  limit: number,
): Promise<readonly OrgWithPlan[]> {
  const { rows } = await q.query<OrgWithPlan>({
    text: `SELECT id, slug, name, plan, quota_overrides, suspended_at FROM orgs WHERE id > $1 ORDER BY id LIMIT $2`,
    values: [after ?? NIL_UUID, limit],
  })
  return rows
}
