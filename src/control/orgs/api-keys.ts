import { formatApiKey, hashSecret } from '../../domain/orgs/api-key.ts'
import { SCOPES, type OrgActor, type Scope } from '../../domain/orgs/caller.ts'
import { requireMatch, etagOf, type IfMatch } from '../../domain/requests/etag.ts'
import { asId, type ApiKeyId } from '../../domain/ids.ts'
import { isName, NAME_RULE } from '../../domain/sandboxes/names.ts'
import { Problem } from '../../domain/problem.ts'
import { invalidRequest } from '../../domain/spec/refusal.ts'
import * as apiKeys from '../../store/orgs/api-keys.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import { notifyAtCommit } from '../../store/postgres/notification-connection.ts'
import type { ControlDeps } from '../deps.ts'
import { readPage, type Page, type PageInput } from '../requests/page.ts'
import type { IdempotentAttempt } from '../requests/idempotent-attempt.ts'
import { recordEvent } from '../events/record-event.ts'
import { apiKeyTopic } from '../streams/watch-caller.ts'

type InOrg = Pick<OrgActor, 'org_id'>
type WriteDeps = Pick<ControlDeps, 'db' | 'clock' | 'uuids' | 'random'>

export type ApiKey = apiKeys.ApiKeyRow

export type NewApiKey = {
  readonly name: string
  /** At least one. */
  readonly scopes: readonly Scope[]
  readonly expires_at: Date | null
  readonly once?: IdempotentAttempt | null
}

/**
 * Makes an API key. Its text is in this answer and nowhere else: only its hash is stored. Throws `invalid_request` for a
 * name that can't be one and for an expiry that is not in the future.
 */
export async function createApiKey(
  deps: WriteDeps,
  acting: OrgActor,
  input: NewApiKey,
): Promise<ApiKey & { readonly key: string }> {
  const { once = null } = input
  if (once !== null && once.noted !== null) {
    const [id = '', key = ''] = once.noted.split(' ')
    return { ...(await getApiKey(deps, acting, asId<ApiKeyId>(id))), key }
  }
  validateNewKey(input, deps.clock.now())
  const key = formatApiKey(deps.random.bytes(32))
  return deps.db.transaction(acting.org_id, async (tx) => {
    const saved = await insertApiKey(deps, tx, acting, { ...input, key })
    await once?.note(tx, `${saved.id} ${key}`) // sealed, as the reply is
    return { ...saved, key }
  })
}

/** Saves a key of a given text, with its event, in a transaction that makes more. */
export async function insertApiKey(
  deps: Pick<WriteDeps, 'clock' | 'uuids'>,
  tx: Queryable,
  acting: OrgActor,
  { key, name, expires_at, scopes: given }: NewApiKey & { readonly key: string },
): Promise<ApiKey> {
  const id = asId<ApiKeyId>(deps.uuids.next())
  const scopes = SCOPES.filter((scope) => given.includes(scope))
  const now = deps.clock.now()
  const { org_id } = acting
  await apiKeys.insert(tx, { id, org_id, name, scopes, secretSha256: hashSecret(key), now, expires_at })
  const expiry = expires_at === null ? {} : { expires_at: expires_at.toISOString() }
  const payload = { api_key_id: id, name, scopes, ...expiry }
  await recordEvent(deps, tx, { ...acting, event_type: 'api_key_created', payload })
  return { id, name, scopes, created_at: now, expires_at, last_used_at: null, revoked_at: null }
}

/** A page of the organization's keys, the newest first; revoked and expired ones stay in it. */
export function listApiKeys(deps: Pick<ControlDeps, 'db'>, { org_id }: InOrg, input: PageInput): Promise<Page<ApiKey>> {
  return readPage('api_keys', input, (after, count) =>
    deps.db.asOrg(org_id, (q) => apiKeys.page(q, org_id, after, count)),
  )
}

/** A key of the organization. Throws `api_key_not_found`. */
export async function getApiKey(deps: Pick<ControlDeps, 'db'>, { org_id }: InOrg, id: ApiKeyId): Promise<ApiKey> {
  const found = await deps.db.asOrg(org_id, (q) => apiKeys.find(q, org_id, id))
  if (found === null) throw new Problem('api_key_not_found')
  return found
}

/**
 * Ends a key: refused from now on in this process, and within a second in others. Revoking a revoked key succeeds and
 * changes nothing. Throws `api_key_not_found`, `precondition_failed`.
 */
export async function revokeApiKey(
  deps: Pick<ControlDeps, 'db' | 'clock' | 'uuids' | 'keyCache'>,
  acting: OrgActor,
  id: ApiKeyId,
  ifMatch: IfMatch | null = null,
): Promise<void> {
  const hash = await deps.db.transaction(acting.org_id, (tx) => revokeInTransaction(deps, tx, acting, { id, ifMatch }))
  deps.keyCache.forget(hash.toString('base64'))
}

async function revokeInTransaction(
  deps: Pick<ControlDeps, 'clock' | 'uuids'>,
  tx: Queryable,
  acting: OrgActor,
  { id, ifMatch }: { readonly id: ApiKeyId; readonly ifMatch: IfMatch | null },
): Promise<Buffer> {
  const found = await apiKeys.lock(tx, acting.org_id, id)
  if (found === null) throw new Problem('api_key_not_found')
  if (ifMatch !== null) requireMatch(ifMatch, etagOf(JSON.stringify(await apiKeys.find(tx, acting.org_id, id))))
  if (found.revoked_at !== null) return found.secret_sha256
  await apiKeys.revoke(tx, acting.org_id, id, deps.clock.now())
  const payload = { api_key_id: id, name: found.name }
  await recordEvent(deps, tx, { ...acting, event_type: 'api_key_revoked', payload })
  await notifyAtCommit(tx, [apiKeyTopic(id)]) // what the key has open ends
  return found.secret_sha256
}

function validateNewKey({ name, scopes, expires_at }: NewApiKey, now: Date): void {
  if (!isName(name)) throw invalidRequest('name', name, NAME_RULE)
  if (scopes.length === 0) throw invalidRequest('scopes', scopes, `at least one of ${SCOPES.join(', ')}`)
  if (expires_at !== null && expires_at <= now)
    throw invalidRequest('expires_at', expires_at.toISOString(), 'an instant in the future')
}
