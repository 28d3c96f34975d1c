import { hashSecretBase64 } from '../../domain/orgs/api-key.ts'
import { ROLE_OF_SCOPE, widestScope, type Caller } from '../../domain/orgs/caller.ts'
import * as apiKeys from '../../store/orgs/api-keys.ts'
import type { ControlDeps, CachedKey } from '../deps.ts'

type AuthenticateDeps = Pick<ControlDeps, 'db' | 'clock' | 'keyCache' | 'noteKeyUse'>

/** The last use of a key is written down when the one that is known is this old, so that a busy key costs no writes. */
const LAST_USE_RESOLUTION_MS = 60_000

/**
 * Who a key belongs to, or null for a key that is unknown, revoked or expired. A key that was just looked up is
 * trusted for a second, so that a client's burst costs one look-up; it is not trusted beyond its expiry. `onStranger` is
 * called before a key is looked up that was not found before, and may throw.
 */
export async function authenticate(
  deps: AuthenticateDeps,
  key: string,
  onUnknownKey: () => void = () => undefined,
): Promise<Caller | null> {
  const hash = hashSecretBase64(key)
  const known = await deps.keyCache.find(hash, deps.clock.monotonicMs(), async ({ wasKnown }) => {
    if (!wasKnown) onUnknownKey()
    return lookUp(deps, Buffer.from(hash, 'base64'))
  })
  if (known === null) return null
  const { caller, expires_at } = known
  return expires_at === null || deps.clock.now() < expires_at ? caller : null
}

async function lookUp(deps: AuthenticateDeps, hash: Buffer): Promise<CachedKey | null> {
  const now = deps.clock.now()
  const row = await deps.db.asSystem((q) => apiKeys.findActive(q, hash, now))
  if (row === null) return null
  const { id, last_used_at, expires_at } = row
  if (last_used_at === null || now.getTime() - last_used_at.getTime() >= LAST_USE_RESOLUTION_MS)
    deps.noteKeyUse({ id, at: now })
  const scope = widestScope(row.scopes)
  const actor = { kind: 'api_key', api_key_id: id, name: row.name } as const
  return { expires_at, caller: { org_id: row.org_id, api_key_id: id, role: ROLE_OF_SCOPE[scope], scope, actor } }
}
