import { authenticate } from '../../src/control/orgs/authenticate.ts'
import type { ControlDeps } from '../../src/control/make-deps.ts'
import { formatApiKey, hashSecret } from '../../src/domain/orgs/api-key.ts'
import { SCOPES, type Caller, type Scope } from '../../src/domain/orgs/caller.ts'
import { asId, type ApiKeyId, type OrgId } from '../../src/domain/ids.ts'
import * as apiKeys from '../../src/store/orgs/api-keys.ts'
import * as orgs from '../../src/store/orgs/orgs.ts'

/** Adds an organization with one key. Resolves with the caller of that key. */
export async function addOrg(deps: ControlDeps, name: string): Promise<Caller> {
  const org_id = asId<OrgId>(deps.uuids.next())
  const now = deps.clock.now()
  await deps.db.asSystem((q) => orgs.insert(q, { id: org_id, name, slug: name, now }))
  const caller = await authenticate(deps, await addKey(deps, org_id))
  if (caller === null) throw new Error('a new organization has no usable key')
  return caller
}

/** Adds a key to an organization, with all scopes unless some are given. Resolves with the key's secret. */
export async function addKey(
  deps: ControlDeps,
  org_id: OrgId,
  {
    scopes = SCOPES,
    expires_at = null,
    isOperator = false,
  }: { readonly scopes?: readonly Scope[]; readonly expires_at?: Date | null; readonly isOperator?: boolean } = {},
): Promise<string> {
  const key = formatApiKey(deps.random.bytes(32))
  const id = asId<ApiKeyId>(deps.uuids.next())
  const now = deps.clock.now()
  await deps.db.asSystem((q) =>
    apiKeys.insert(q, {
      id,
      org_id,
      name: 'k',
      scopes,
      secretSha256: hashSecret(key),
      now,
      expires_at,
      is_operator: isOperator,
    }),
  )
  return key
}
