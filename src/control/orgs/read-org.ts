import type { Caller, Role } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import type { ControlDeps } from '../deps.ts'

/** An organization with the caller's role in it. */
export type Org = orgs.OrgRow & { readonly role: Role }

/** The caller's organization. */
export async function getOrg(deps: Pick<ControlDeps, 'db'>, caller: Caller): Promise<Org> {
  const org = await deps.db.asOrg(caller.org_id, (q) => orgs.find(q, caller.org_id))
  if (org === null) throw new Problem('not_found')
  return { ...org, role: caller.role }
}
