import { formatApiKey } from '../../domain/orgs/api-key.ts'
import { SCOPES, SYSTEM_ACTOR } from '../../domain/orgs/caller.ts'
import type { OrgId } from '../../domain/ids.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import { insertApiKey } from './api-keys.ts'
import type { BaseDeps } from '../deps.ts'
import { insertOrg } from './orgs.ts'

/** The organization and the API key that the first start created. */
export type FirstOrg = { readonly org_id: OrgId; readonly key: string }

/** The owner of the first organization until the operator adds people. Whoever starts the server signs in as this member. */
const FIRST_OWNER = { email: 'owner@localhost', display_name: null, role: 'owner', isOperator: true } as const

/** Whether the installation has an organization. */
export async function hasOrg({ db }: Pick<BaseDeps, 'db'>): Promise<boolean> {
  return (await db.asSystem((q) => orgs.findFirst(q))) !== null
}

/**
 * Creates the first organization with its owner, default volume and API key, in one transaction. Resolves with null if
 * there is an organization already. The key is `presetKey`, or a generated one.
 */
export async function createFirstOrg(
  deps: Pick<BaseDeps, 'db' | 'clock' | 'uuids' | 'random'>,
  presetKey: string | null,
): Promise<FirstOrg | null> {
  return deps.db.transaction('system', async (tx) => {
    await orgs.lockFirstOrg(tx)
    if ((await orgs.findFirst(tx)) !== null) return null
    const named = { name: 'default', slug: 'default' }
    const org_id = await insertOrg(deps, tx, { ...named, owner: FIRST_OWNER, actor: SYSTEM_ACTOR })
    const acting = { org_id, actor: SYSTEM_ACTOR }
    const key = presetKey ?? formatApiKey(deps.random.bytes(32))
    await insertApiKey(deps, tx, acting, { key, name: 'first key', scopes: SCOPES, expires_at: null })
    return { org_id, key }
  })
}
