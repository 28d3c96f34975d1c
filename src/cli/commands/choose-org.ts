import { OPERATOR_ACTOR, type OrgActor } from '../../domain/orgs/caller.ts'
import type { Database } from '../../store/postgres/database.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import { UsageError } from './command.ts'

/** How many organizations a refusal lists. */
const MAX_LISTED = 20

/**
 * The organization that a command is about: the one that `--org SLUG` names, or the only one. Throws `UsageError` for a
 * slug that is nobody's, and when there are several and none is named; both list what there is.
 */
export async function findOrg(db: Database, slug: string | undefined): Promise<orgs.OrgRow> {
  if (slug !== undefined) {
    const named = await db.asSystem((q) => orgs.findBySlug(q, slug))
    if (named !== null) return named
  }
  const listed = await db.asSystem((q) => orgs.list(q, MAX_LISTED + 1))
  const [only, ...others] = listed
  if (only === undefined) throw new Error('there is no organization yet: start the server once')
  if (slug === undefined && others.length === 0) return only
  const shown = listed.slice(0, MAX_LISTED).map((org) => org.slug)
  const slugs = `${shown.join(', ')}${listed.length > MAX_LISTED ? ', …' : ''}`
  throw new UsageError(
    slug === undefined
      ? `there are several organizations, so name one by --org: ${slugs}`
      : `there is no organization '${slug}'; there is ${slugs}`,
  )
}

/** Who acts when a command of the `sandyard` program changes something of an organization. */
export function asOperator(org: Pick<orgs.OrgRow, 'id'>): OrgActor {
  return { org_id: org.id, actor: OPERATOR_ACTOR }
}
