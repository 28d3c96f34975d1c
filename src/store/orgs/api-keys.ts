/** API keys. The secret of a key is never stored; its SHA-256 is. */
import type { Scope } from '../../domain/orgs/caller.ts'
import type { ApiKeyId, OrgId } from '../../domain/ids.ts'
import { ORG_MAXIMA } from '../../domain/org-maxima.ts'
import { minUuidAt, NIL_UUID } from '../../lib/uuid.ts'
import * as column from '../postgres/column-list.ts'
import type { Queryable, Statement } from '../postgres/database.ts'
import type { PruneStep, StepResult } from '../postgres/prune-step.ts'
import * as orgs from './orgs.ts'

/** An API key as its organization sees it. */
export type ApiKeyRow = {
  readonly id: ApiKeyId
  readonly name: string
  readonly scopes: readonly Scope[]
  readonly created_at: Date
  readonly expires_at: Date | null
  /** Accurate to the minute: see `recordUses`. */
  readonly last_used_at: Date | null
  readonly revoked_at: Date | null
}

export type NewApiKey = {
  readonly id: ApiKeyId
  readonly org_id: OrgId
  readonly name: string
  readonly scopes: readonly Scope[]
  readonly secretSha256: Buffer
  readonly now: Date
  readonly expires_at: Date | null
  readonly is_operator: boolean
}

const FIELDS = 'id, name, scopes, created_at, expires_at, last_used_at, revoked_at'

/**
 * Inserts an API key with the hash of its secret. Returns false if the organization already has the most valid keys. A secret that
 * exists already violates `api_keys_secret_key`. Locks the organization.
 */
export async function insert(tx: Queryable, key: NewApiKey): Promise<boolean> {
  const { id, org_id, name, scopes, secretSha256, now, expires_at, is_operator } = key
  await orgs.lock(tx, org_id)
  const { rowCount } = await tx.query({
    text: `INSERT INTO api_keys (id, org_id, name, scopes, secret_sha256, created_at, expires_at, is_operator)
           SELECT $1, $2, $3, $4, $5, $6, $7, $8
           WHERE (SELECT count(*) FROM api_keys
             WHERE org_id = $2 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $6)) < $9`,
    values: [id, org_id, name, scopes, secretSha256, now, expires_at, is_operator, ORG_MAXIMA.api_keys],
  })
  return rowCount === 1
}

/** An API key that is valid until `expires_at`. */
export type ActiveKey = {
  readonly id: ApiKeyId
  readonly org_id: OrgId
  readonly name: string
  readonly scopes: readonly Scope[]
  readonly expires_at: Date | null
  readonly last_used_at: Date | null
  readonly is_operator: boolean
}

/**
 * Finds the key whose secret has this hash. Returns null if there is none, or if the key is revoked or expired at
 * `now`. The index look-up does not take constant time. Its duration reveals nothing useful, because nobody can choose
 * a secret by its hash.
 */
export async function findActive(q: Queryable, secretSha256: Buffer, now: Date): Promise<ActiveKey | null> {
  const { rows } = await q.query<ActiveKey>({
    name: 'api_keys.findActive',
    text: `SELECT id, org_id, name, scopes, expires_at, last_used_at, is_operator FROM api_keys
           WHERE secret_sha256 = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)`,
    values: [secretSha256, now],
  })
  return rows[0] ?? null
}

/** The state of an API key that decides whether an authenticated request may continue. */
export type KeyState = {
  readonly id: ApiKeyId
  readonly is_revoked: boolean
  readonly expires_at: Date | null
  /** Whether the key's organization is suspended. */
  readonly is_suspended: boolean
}

/**
 * The current states of API keys, SSH keys and sessions. Those that no longer exist are left out. A session expires
 * `sessionIdleMs` after it was last seen, and at its end.
 */
export async function keyStates(
  q: Queryable,
  ids: readonly ApiKeyId[],
  sessionIdleMs: number,
): Promise<readonly KeyState[]> {
  const { rows } = await q.query<KeyState>({
    name: 'api_keys.keyStates',
    text: `SELECT k.id, k.revoked_at IS NOT NULL AS is_revoked, k.expires_at, o.suspended_at IS NOT NULL AS is_suspended
           FROM api_keys k JOIN orgs o ON o.id = k.org_id WHERE k.id = ANY($1)
           UNION ALL SELECT k.id, false, NULL, o.suspended_at IS NOT NULL
           FROM ssh_keys k JOIN orgs o ON o.id = k.org_id WHERE k.id = ANY($1)
           UNION ALL SELECT s.id, false, least(s.expires_at, s.last_seen_at + $2 * interval '1 millisecond'), o.suspended_at IS NOT NULL
           FROM member_sessions s JOIN orgs o ON o.id = s.org_id WHERE s.id = ANY($1)`,
    values: [ids, sessionIdleMs],
  })
  return rows
}

/** A use of an API key: the key and the time. */
type KeyUse = { readonly id: ApiKeyId; readonly at: Date }

const USES = column.columnList<KeyUse>({
  id: column.uuid(({ id }) => id),
  at: column.timestamptz(({ at }) => at),
})

/** The statement that records when API keys were used. An earlier time never replaces a later one. */
export function recordUses(uses: readonly KeyUse[]): Statement {
  return {
    name: 'api_keys.recordUses',
    text: `UPDATE api_keys k SET last_used_at = used.at
           FROM (SELECT id, max(at) AS at FROM ${USES.unnest({ alias: 'u', first: 1 })} GROUP BY id) used
           WHERE k.id = used.id AND (k.last_used_at IS NULL OR k.last_used_at < used.at)`,
    values: USES.valuesOf(uses),
  }
}

/** A page of an organization's keys, newest first, including revoked and expired ones. */
export async function page(
  q: Queryable,
  org: OrgId,
  before: string | null,
  limit: number,
): Promise<readonly ApiKeyRow[]> {
  const { rows } = await q.query<ApiKeyRow>({
    name: before === null ? 'api_keys.page' : 'api_keys.page.before',
    text: `SELECT ${FIELDS} FROM api_keys WHERE org_id = $1 ${before === null ? '' : 'AND id < $3'}
           ORDER BY id DESC LIMIT $2`,
    values: before === null ? [org, limit] : [org, limit, before],
  })
  return rows
}

/** One of an organization's keys, or null. */
export async function find(q: Queryable, org: OrgId, id: ApiKeyId): Promise<ApiKeyRow | null> {
  const { rows } = await q.query<ApiKeyRow>({
    text: `SELECT ${FIELDS} FROM api_keys WHERE org_id = $1 AND id = $2`,
    values: [org, id],
  })
  return rows[0] ?? null
}

/** An API key that is locked in order to revoke it. */
export type LockedKey = {
  readonly name: string
  readonly secret_sha256: Buffer
  readonly revoked_at: Date | null
}

/** Locks one of an organization's API keys until the transaction ends. Null if the key doesn't exist. */
export async function lock(tx: Queryable, org: OrgId, id: ApiKeyId): Promise<LockedKey | null> {
  const { rows } = await tx.query<LockedKey>({
    text: 'SELECT name, secret_sha256, revoked_at FROM api_keys WHERE org_id = $1 AND id = $2 FOR UPDATE',
    values: [org, id],
  })
  return rows[0] ?? null
}

/** Revokes a key for good. */
export async function revoke(tx: Queryable, org: OrgId, id: ApiKeyId, now: Date): Promise<void> {
  await tx.query({ text: 'UPDATE api_keys SET revoked_at = $3 WHERE org_id = $1 AND id = $2', values: [org, id, now] })
}

/**
 * Deletes keys that were revoked or had expired before an instant. A key's id is made when the key is, so the walk in the order of ids needs
 * no index of its own.
 */
export const prune: PruneStep = async (q, { before, after, limit }) => {
  const { rows } = await q.query<StepResult>({
    name: 'api_keys.prune',
    text: `WITH w AS MATERIALIZED (SELECT id FROM api_keys WHERE id > $1 AND id < $2 ORDER BY id LIMIT $4),
           gone AS (DELETE FROM api_keys k USING w WHERE k.id = w.id AND least(k.revoked_at, k.expires_at) < $3)
           SELECT count(*) AS walked, (SELECT id FROM w ORDER BY id DESC LIMIT 1) AS last FROM w`,
    values: [after ?? NIL_UUID, minUuidAt(before), before, limit],
  })
  return rows[0] ?? { walked: 0, last: null }
}
