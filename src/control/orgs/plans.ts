import { OPERATOR_ACTOR } from '../../domain/orgs/caller.ts'
import { isPlanName, parsePlanTerms, PLAN_NAME_RULE, type Plan } from '../../domain/orgs/plan.ts'
import { Problem } from '../../domain/problem.ts'
import { invalidRequest, refusalProblem } from '../../domain/refusal.ts'
import * as plans from '../../store/orgs/plans.ts'
import { notifyAtCommit } from '../../store/postgres/notification-connection.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { areLimitsEqual, requireEnforceableLimits } from './quotas.ts'
import { recordEvent } from '../events/record-event.ts'
import { QUOTAS_TOPIC } from '../topics.ts'

/** All plans by name, with the number of organizations on each. */
export function listPlans(deps: Pick<BaseDeps, 'db'>): Promise<readonly (Plan & { readonly orgs: number })[]> {
  return deps.db.asSystem((q) => plans.list(q))
}

/** One plan. Throws `not_found`. */
export async function getPlan(deps: Pick<BaseDeps, 'db'>, name: string): Promise<Plan> {
  const plan = await deps.db.asSystem((q) => plans.find(q, name))
  if (plan === null) throw planNotFound(name)
  return plan
}

/** The problem for an unknown plan. */
export function planNotFound(name: string): Problem {
  return new Problem('not_found', { message: `there is no plan '${name}'; \`sandyard plan list\` shows all plans` })
}

/**
 * Creates a plan from JSON, or changes its terms. New terms apply at once to every organization on the plan, and each
 * organization gets an event. May be repeated. Throws `invalid_request` with the field that is unknown or has an
 * invalid value.
 */
export async function setPlan(deps: WriteDeps, name: string, json: unknown): Promise<void> {
  if (!isPlanName(name)) throw invalidRequest('name', name, PLAN_NAME_RULE)
  const parsed = parsePlanTerms(json)
  if ('refusal' in parsed) throw refusalProblem(parsed.refusal)
  const { limits, prices } = parsed.terms
  await deps.db.transaction('system', async (tx) => {
    await plans.lockAll(tx)
    const from = await plans.find(tx, name)
    if (from !== null && areLimitsEqual(from.limits, limits) && samePrices(from, parsed.terms)) return
    await requireEnforceableLimits(tx, limits)
    await plans.save(tx, { name, limits, prices }, deps.clock.now())
    const payload = {
      plan: name,
      limits,
      ...(prices === null ? {} : { prices }),
      from: { limits: from?.limits ?? {}, prices: from?.prices ?? null },
    }
    for (const org_id of await plans.orgsOn(tx, name))
      await recordEvent(deps, tx, { org_id, actor: OPERATOR_ACTOR, event_type: 'plan_changed', payload })
    await notifyAtCommit(tx, [QUOTAS_TOPIC])
  })
}

function samePrices(one: Pick<Plan, 'prices'>, other: Pick<Plan, 'prices'>): boolean {
  const text = ({ prices }: Pick<Plan, 'prices'>): string =>
    JSON.stringify(prices === null ? null : Object.entries(prices).toSorted(([a], [b]) => (a < b ? -1 : 1)))
  return text(one) === text(other)
}
