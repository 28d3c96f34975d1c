import { formatApiKey, hashSecret } from '../../domain/orgs/api-key.ts'
import { SCOPES, type OrgActor, type Scope } from '../../domain/orgs/caller.ts'
import { tooManyOf } from '../../domain/org-maxima.ts'
import { requireMatch, etagOf, type IfMatch } from '../../domain/requests/etag.ts'
import { asId, type ApiKeyId } from '../../domain/ids.ts'
import { isName, NAME_RULE } from '../../domain/names.ts'
import { Problem } from '../../domain/problem.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import * as apiKeys from '../../store/orgs/api-keys.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import { notifyAtCommit } from '../../store/postgres/notification-connection.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { readPage, type Page, type PageInput } from '../requests/page.ts'
import type { IdempotentAttempt } from '../requests/idempotency.ts'
import type { KeyCache } from './key-cache.ts'
import { recordEvent } from '../events/record-event.ts'
import { apiKeyTopic } from '../topics.ts'

type InOrg = Pick<OrgActor, 'org_id'>

export type ApiKey = apiKeys.ApiKeyRow

export type NewApiKey = {
  readonly name: string
  /** Contains at least one scope. */
  readonly scopes: readonly Scope[]
  readonly expires_at: Date | null
  /** Whether the key may read what is of all organizations. Absent: no. */
  readonly isOperator?: boolean
  readonly attempt?: IdempotentAttempt | null
}

/**
 * Creates an API key. Its text appears only in this answer, because only a hash is stored. Throws `invalid_request` for
 * an invalid name, for an empty list of scopes, and for an expiry that is not in the future. Throws `quota_exceeded`.
 */
export async function createApiKey(
  deps: WriteDeps & Pick<BaseDeps, 'random'>,
  acting: OrgActor,
  input: NewApiKey,
): Promise<ApiKey & { readonly key: string }> {
  const { attempt = null } = input
  if (attempt !== null && attempt.savedNote !== null) {
    const [id = '', key = ''] = attempt.savedNote.split(' ')
    return { ...(await getApiKey(deps, acting, asId<ApiKeyId>(id))), key }
  }
  validateNewKey(input, deps.clock.now())
  const key = formatApiKey(deps.random.bytes(32))
  return deps.db.transaction(acting.org_id, async (tx) => {
    const saved = await insertApiKey(deps, tx, acting, { ...input, key })
    await attempt?.saveNote(tx, `${saved.id} ${key}`) // the note is sealed before it is stored
    return { ...saved, key }
  })
}

/** Inserts a key with a given text and records its event, in the caller's transaction. Throws `quota_exceeded`. */
export async function insertApiKey(
  deps: Pick<WriteDeps, 'clock' | 'uuids'>,
  tx: Queryable,
  acting: OrgActor,
  { key, name, expires_at, scopes: given, isOperator = false }: NewApiKey & { readonly key: string },
): Promise<ApiKey> {
  const id = asId<ApiKeyId>(deps.uuids.next())
  const scopes = SCOPES.filter((scope) => given.includes(scope))
  const now = deps.clock.now()
  const { org_id } = acting
  const row = { id, org_id, name, scopes, secretSha256: hashSecret(key), now, expires_at, is_operator: isOperator }
  if (!(await apiKeys.insert(tx, row))) throw tooManyOf('api_keys')
  const expiry = expires_at === null ? {} : { expires_at: expires_at.toISOString() }
  const payload = { api_key_id: id, name, scopes, ...expiry }
  await recordEvent(deps, tx, { ...acting, event_type: 'api_key_created', payload })
  return { id, name, scopes, created_at: now, expires_at, last_used_at: null, revoked_at: null }
}

/** A page of the organization's keys, newest first, including revoked and expired ones. */
export function listApiKeys(deps: Pick<BaseDeps, 'db'>, { org_id }: InOrg, input: PageInput): Promise<Page<ApiKey>> {
  return readPage('api_keys', input, (after, count) =>
    deps.db.asOrg(org_id, (q) => apiKeys.page(q, org_id, after, count)),
  )
}

/** A key of the organization. Throws `api_key_not_found`. */
export async function getApiKey(deps: Pick<BaseDeps, 'db'>, { org_id }: InOrg, id: ApiKeyId): Promise<ApiKey> {
  const found = await deps.db.asOrg(org_id, (q) => apiKeys.find(q, org_id, id))
  if (found === null) throw new Problem('api_key_not_found')
  return found
}

/**
 * Revokes a key. This process refuses the key at once; the others refuse it within a second. Revoking a revoked key
 * changes nothing. Throws `api_key_not_found` and `precondition_failed`.
 */
export async function revokeApiKey(
  deps: WriteDeps & { readonly keyCache: Pick<KeyCache, 'forget'> },
  acting: OrgActor,
  id: ApiKeyId,
  ifMatch: IfMatch | null = null,
): Promise<void> {
  const hash = await deps.db.transaction(acting.org_id, (tx) => revokeInTransaction(deps, tx, acting, { id, ifMatch }))
  deps.keyCache.forget(hash.toString('base64'))
}

async function revokeInTransaction(
  deps: Pick<BaseDeps, 'clock' | 'uuids'>,
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
  await notifyAtCommit(tx, [apiKeyTopic(id)]) // ends the open channels and streams of the key
  return found.secret_sha256
}

function validateNewKey({ name, scopes, expires_at }: NewApiKey, now: Date): void {
  if (!isName(name)) throw invalidRequest('name', name, NAME_RULE)
  if (scopes.length === 0) throw invalidRequest('scopes', scopes, `at least one of ${SCOPES.join(', ')}`)
  if (expires_at !== null && expires_at <= now)
    throw invalidRequest('expires_at', expires_at.toISOString(), 'an instant in the future')
}
