import { createApiKey, revokeApiKey } from '../../../control/orgs/api-keys.ts'
import type { OrgId } from '../../../domain/ids.ts'
import { asOperator, type OperatorDeps } from '../operator.ts'

/** The key to make. `isOperator`: it may do what operators do over the API. */
type ReadKey = {
  readonly org_id: OrgId
  readonly name: string
  readonly lifeMs: number
  readonly isOperator?: boolean
}

/**
 * Runs `work` with a new key of an organization that may only read, and revokes the key afterwards. If this process is
 * killed before, the key expires after `lifeMs`. Both are audit events of the organization.
 */
export async function withReadKey<Result>(
  deps: OperatorDeps,
  { org_id, name, lifeMs, isOperator = false }: ReadKey,
  work: (key: string) => Promise<Result>,
): Promise<Result> {
  const acting = asOperator({ id: org_id })
  const expires_at = new Date(deps.clock.now().getTime() + lifeMs)
  const { id, key } = await createApiKey(deps, acting, { name, scopes: ['read'], expires_at, isOperator })
  try {
    return await work(key)
  } finally {
    await revokeApiKey(deps, acting, id)
  }
}
