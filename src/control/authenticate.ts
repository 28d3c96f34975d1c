import { hashSecret } from '../domain/api-key.ts'
import { ROLE_OF_SCOPE, widestScope, type Caller } from '../domain/caller.ts'
import * as orgs from '../store/orgs.ts'
import type { ControlDeps } from './deps.ts'

/**
 * Who a key belongs to, or null for a key that is unknown, revoked or expired. A key that was just looked up is
 * trusted for a second, so that a client's burst costs one look-up.
 */
export async function authenticate(
  deps: Pick<ControlDeps, 'db' | 'clock' | 'keyCache'>,
  key: string,
): Promise<Caller | null> {
  const hash = hashSecret(key)
  return deps.keyCache.find(hash.toString('base64'), deps.clock.monotonicMs(), () => lookUp(deps, hash))
}

async function lookUp(deps: Pick<ControlDeps, 'db' | 'clock'>, hash: Buffer): Promise<Caller | null> {
  const now = deps.clock.now()
  const row = await deps.db.asSystem(async (q) => {
    const found = await orgs.findLiveKey(q, hash, now)
    if (found !== null) await orgs.touchKey(q, found.id, now)
    return found
  })
  if (row === null) return null
  const scope = widestScope(row.scopes)
  return {
    org_id: row.org_id,
    api_key_id: row.id,
    role: ROLE_OF_SCOPE[scope],
    scope,
    actor: { kind: 'api_key', api_key_id: row.id, name: row.name },
  }
}
