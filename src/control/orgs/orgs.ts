import { OPERATOR_ACTOR, type Caller, type OrgActor, type Role } from '../../domain/orgs/caller.ts'
import { EMAIL_RULE, parseEmail } from '../../domain/orgs/email.ts'
import { asId, type OrgId } from '../../domain/ids.ts'
import { isName, isSlug, NAME_RULE, SLUG_RULE, slugFromName } from '../../domain/names.ts'
import { Problem } from '../../domain/problem.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import { PAGE_MAX } from '../../domain/requests/request-bounds.ts'
import { violatedConstraint, type Queryable } from '../../store/postgres/database.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import * as plans from '../../store/orgs/plans.ts'
import { notifyAtCommit } from '../../store/postgres/notification-connection.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { insertMember } from './members.ts'
import { planNotFound } from './plans.ts'
import { requireEnforceableLimits } from './quotas.ts'
import { recordEvent } from '../events/record-event.ts'
import { readPage, type Page, type PageInput } from '../requests/page.ts'
import { orgTopic, QUOTAS_TOPIC } from '../topics.ts'

/** An organization with the caller's role in it. */
export type Org = orgs.OrgRow & { readonly role: Role }

/** The caller's organization. */
export async function getOrg(deps: Pick<BaseDeps, 'db'>, caller: Caller): Promise<Org> {
  const org = await deps.db.asOrg(caller.org_id, (q) => orgs.find(q, caller.org_id))
  if (org === null) throw new Problem('not_found')
  return { ...org, role: caller.role }
}

export type NewOrg = {
  readonly name: string
  /** Null: the slug is derived from the name. */
  readonly slug: string | null
  /** The e-mail address of the first owner. */
  readonly owner: string
  readonly plan: string
}

/**
 * Creates an organization with its owner and default volume, but without an API key. Throws `invalid_request` by field,
 * `not_found` for the plan, and `name_already_exists` for a slug that is taken.
 */
export async function createOrg(
  deps: WriteDeps,
  input: NewOrg,
): Promise<{ readonly id: OrgId; readonly slug: string }> {
  const { name, plan } = input
  if (!isName(name)) throw invalidRequest('name', name, NAME_RULE)
  const email = parseEmail(input.owner)
  if (email === null) throw invalidRequest('owner', input.owner, EMAIL_RULE)
  const slug = input.slug ?? slugFromName(name)
  if (slug === null || !isSlug(slug)) throw invalidRequest('slug', input.slug ?? name, SLUG_RULE)
  const owner = { email, display_name: null, role: 'owner' } as const
  try {
    return await deps.db.transaction('system', async (tx) => {
      const id = await insertOrg(deps, tx, { name, slug, owner, actor: OPERATOR_ACTOR })
      await assignPlan(deps, tx, { org_id: id, actor: OPERATOR_ACTOR }, plan)
      return { id, slug }
    })
  } catch (error) {
    if (violatedConstraint(error) !== 'orgs_slug_key') throw error
    throw new Problem('name_already_exists', {
      message: `the slug '${slug}' belongs to another organization`,
      details: { field: 'slug', seen: slug, accepted: 'a slug that no organization has' },
      cause: error,
    })
  }
}

/**
 * Inserts an organization with its owner and default volume, and records the audit events, in the caller's transaction.
 */
export async function insertOrg(
  deps: Pick<WriteDeps, 'clock' | 'uuids'>,
  tx: Queryable,
  given: Pick<NewOrg, 'name'> &
    Pick<OrgActor, 'actor'> & { readonly slug: string; readonly owner: Parameters<typeof insertMember>[3] },
): Promise<OrgId> {
  const { name, slug, owner, actor } = given
  const now = deps.clock.now()
  const org_id = asId<OrgId>(deps.uuids.next())
  const acting = { org_id, actor }
  await orgs.insert(tx, { id: org_id, name, slug, now })
  await recordEvent(deps, tx, { ...acting, event_type: 'org_created', payload: { name, slug } })
  await insertMember(deps, tx, acting, owner)
  const volume_id = deps.uuids.next()
  await orgs.insertDefaultVolume(tx, { id: volume_id, org_id, now })
  await recordEvent(deps, tx, { ...acting, event_type: 'volume_created', payload: { volume_id, kind: 'host' } })
  return org_id
}

/** A page of all organizations with their plan and state, the oldest first. Throws `invalid_request` for a bad cursor. */
export function listOrgs(deps: Pick<BaseDeps, 'db'>, input: PageInput): Promise<Page<plans.OrgWithPlan>> {
  return readPage('organizations', input, (after, count) =>
    deps.db.asSystem((q) => plans.listOrgsWithPlans(q, after, count)),
  )
}

/** All organizations with their plan and state, the oldest first. */
export async function* listAllOrgs(deps: Pick<BaseDeps, 'db'>): AsyncGenerator<plans.OrgWithPlan> {
  for (let cursor: string | null = null; ;) {
    const page: Page<plans.OrgWithPlan> = await listOrgs(deps, { cursor, limit: PAGE_MAX })
    yield* page.items
    cursor = page.nextCursor
    if (cursor === null) return
  }
}

/**
 * Suspends an organization. New starts are refused from now on, and the loops stop the running sandboxes. May be
 * repeated.
 */
export async function suspendOrg(deps: WriteDeps, acting: OrgActor, reason: string | null): Promise<void> {
  await deps.db.transaction('system', async (tx) => {
    const terms = await plans.lockPlanSettings(tx, acting.org_id)
    if (terms.suspended_at !== null) return
    const now = deps.clock.now()
    await plans.savePlanSettings(tx, acting.org_id, { ...terms, suspended_at: now, now })
    await recordEvent(deps, tx, { ...acting, event_type: 'org_suspended', payload: reason === null ? {} : { reason } })
    await notifyAtCommit(tx, [QUOTAS_TOPIC, orgTopic(acting.org_id)])
  })
}

/** Ends a suspension. Sandboxes may start again, but none is started automatically. May be repeated. */
export async function resumeOrg(deps: WriteDeps, acting: OrgActor): Promise<void> {
  await deps.db.transaction('system', async (tx) => {
    const terms = await plans.lockPlanSettings(tx, acting.org_id)
    if (terms.suspended_at === null) return
    await plans.savePlanSettings(tx, acting.org_id, { ...terms, suspended_at: null, now: deps.clock.now() })
    await recordEvent(deps, tx, { ...acting, event_type: 'org_resumed', payload: {} })
  })
}

/**
 * Moves an organization to a plan at once. Sandboxes and volumes that already exceed the plan's limits stay. Throws
 * `not_found`, and `invalid_request` for a storage limit that a worker can't enforce.
 */
export async function changeOrgPlan(deps: WriteDeps, acting: OrgActor, plan: string): Promise<void> {
  await deps.db.transaction('system', (tx) => assignPlan(deps, tx, acting, plan))
}

async function assignPlan(
  deps: Pick<WriteDeps, 'clock' | 'uuids'>,
  tx: Queryable,
  acting: OrgActor,
  name: string,
): Promise<void> {
  const plan = await plans.find(tx, name)
  if (plan === null) throw planNotFound(name)
  const terms = await plans.lockPlanSettings(tx, acting.org_id)
  if (terms.plan === name) return
  await requireEnforceableLimits(tx, { ...plan.limits, ...terms.quota_overrides })
  await plans.savePlanSettings(tx, acting.org_id, { ...terms, plan: name, now: deps.clock.now() })
  await recordEvent(deps, tx, { ...acting, event_type: 'org_plan_changed', payload: { plan: name, from: terms.plan } })
  await notifyAtCommit(tx, [QUOTAS_TOPIC])
}
