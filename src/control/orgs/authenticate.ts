import { hashSecretBase64 } from '../../domain/orgs/api-key.ts'
import { ROLE_OF_SCOPE, widestScope, type Caller } from '../../domain/orgs/caller.ts'
import type { ApiKeyId } from '../../domain/ids.ts'
import { makeBatch } from '../../lib/turns/batch.ts'
import * as apiKeys from '../../store/orgs/api-keys.ts'
import type { BaseDeps } from '../deps.ts'
import type { CachedKey, KeyCache } from './key-cache.ts'

type KeyUse = { readonly id: ApiKeyId; readonly at: Date }

/** Records the last use of a key in the background, without making the caller wait. */
export type KeyUseRecorder = { readonly recordKeyUse: (use: KeyUse) => void }

type AuthenticateDeps = Pick<BaseDeps, 'db' | 'clock'> & { readonly keyCache: KeyCache } & KeyUseRecorder

/**
 * A use is recorded only if it is at least this many milliseconds later than the stored last use. This saves writes for
 * a busy key.
 */
const LAST_USE_RESOLUTION_MS = 60_000

/**
 * The caller of a key, or null for an unknown, revoked or expired key. A look-up is cached for a second, but never
 * beyond the key's expiry. `onUnknownKey` is called before the look-up of a key that is not in the cache, not even as
 * an expired entry. If it throws, nothing is looked up.
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
  const isDue = last_used_at === null || now.getTime() - last_used_at.getTime() >= LAST_USE_RESOLUTION_MS
  if (isDue) deps.recordKeyUse({ id, at: now })
  const scope = widestScope(row.scopes)
  const actor = { kind: 'api_key', api_key_id: id, name: row.name } as const
  const { org_id, is_operator: isOperator } = row
  return { expires_at, caller: { org_id, api_key_id: id, role: ROLE_OF_SCOPE[scope], scope, actor, isOperator } }
}

/** The maximum number of keys whose last use is recorded in one statement. */
const USES_MAX = 256

/**
 * Makes a recorder that writes many uses in one statement. If a use can't be written, the failure is logged and the use
 * is lost.
 */
export function makeKeyUseRecorder({ db, log }: Pick<BaseDeps, 'db' | 'log'>): KeyUseRecorder['recordKeyUse'] {
  const write = makeBatch<KeyUse, null>({
    async run(uses) {
      await db.commitStatement('system', apiKeys.recordUses(uses))
      return uses.map(() => null)
    },
    groupOf: () => '',
    maxItems: USES_MAX,
    maxInFlight: 1,
  })
  const record = async (use: KeyUse): Promise<void> => {
    try {
      await write(use)
    } catch (error) {
      log.warn({ error, api_key_id: use.id }, 'could not record the last use of an API key')
    }
  }
  return (use) => void record(use) // it never rejects
}
