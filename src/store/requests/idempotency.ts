/**
 * Requests with an Idempotency-Key: one row per key and organization. The process that serves a request owns a claim on
 * the key. Every write names the claim, so that an attempt whose claim was lost writes nothing.
 */
import type { OrgId } from '../../domain/ids.ts'
import { PIECE_SIZE } from '../../lib/turns/next-turn.ts'
import * as column from '../postgres/column-list.ts'
import type { Queryable, Statement } from '../postgres/database.ts'
import type { LargeValue } from '../postgres/large-values.ts'

/** An attempt to serve a request. */
export type NewClaim = {
  readonly org_id: OrgId
  readonly key: string
  readonly request_sha256: Buffer
  /** The request's id. It is stored for a first attempt; a later attempt gets the stored id of the first. */
  readonly id: string
  readonly claim: string
  readonly claimed_until: Date
  readonly now: Date
  readonly expires_at: Date
}

/** A claim that was acquired. `tries` counts attempts, including this one. */
export type Claimed = { readonly id: string; readonly tries: number; readonly note: Buffer | null }

/**
 * Claims a key. The key must be new or expired, or belong to the same request, whose last claim was released or has
 * expired without a reply. Null if the key can't be claimed; `find` then shows the reason.
 */
export async function claim(q: Queryable, newClaim: NewClaim): Promise<Claimed | null> {
  const { rows } = await q.query<Claimed>({
    name: 'idempotency.claim',
    text: `INSERT INTO idempotency AS i (org_id, key, request_sha256, id, claim, claimed_until, tries, created_at, expires_at)
           VALUES ($1, $2, $3, $4, $5, $6, 1, $7, $8)
           ON CONFLICT (org_id, key) DO UPDATE SET claim = excluded.claim, claimed_until = excluded.claimed_until,
             request_sha256 = excluded.request_sha256, reply_sealed = NULL,
             id = CASE WHEN i.expires_at <= $7 THEN excluded.id ELSE i.id END,
             tries = CASE WHEN i.expires_at <= $7 THEN 1 ELSE i.tries + 1 END,
             note = CASE WHEN i.expires_at <= $7 THEN NULL ELSE i.note END,
             created_at = CASE WHEN i.expires_at <= $7 THEN excluded.created_at ELSE i.created_at END,
             expires_at = CASE WHEN i.expires_at <= $7 THEN excluded.expires_at ELSE i.expires_at END
           WHERE i.expires_at <= $7
             OR (i.reply_sealed IS NULL AND i.claimed_until <= $7 AND i.request_sha256 = excluded.request_sha256)
           RETURNING id, tries, note`,
    values: [
      newClaim.org_id,
      newClaim.key,
      newClaim.request_sha256,
      newClaim.id,
      newClaim.claim,
      newClaim.claimed_until,
      newClaim.now,
      newClaim.expires_at,
    ],
  })
  return rows[0] ?? null
}

/** The stored request of a key. Both members of the reply are null while the request is being served. */
export type StoredRequest = {
  readonly request_sha256: Buffer
  /** The first part of the sealed reply, of at most `PIECE_SIZE`. */
  readonly reply_sealed: Buffer | null
  readonly reply_bytes: number | null
}

/** The stored request of a key, or null. */
export async function find(q: Queryable, org: OrgId, key: string): Promise<StoredRequest | null> {
  const { rows } = await q.query<StoredRequest>({
    name: 'idempotency.find',
    text: `SELECT request_sha256, substring(reply_sealed FOR $3) AS reply_sealed, octet_length(reply_sealed) AS reply_bytes
           FROM idempotency WHERE org_id = $1 AND key = $2`,
    values: [org, key, PIECE_SIZE],
  })
  return rows[0] ?? null
}

/** The part of a sealed reply from a byte on, of at most `PIECE_SIZE`. Null: there is none any more. */
export async function findReplyPart(
  q: Queryable,
  { org_id, key }: Pick<ClaimKey, 'org_id' | 'key'>,
  from: number,
): Promise<Buffer | null> {
  const { rows } = await q.query<Pick<StoredRequest, 'reply_sealed'>>({
    name: 'idempotency.findReplyPart',
    text: `SELECT substring(reply_sealed FROM $3 FOR $4) AS reply_sealed FROM idempotency WHERE org_id = $1 AND key = $2`,
    values: [org_id, key, from + 1, PIECE_SIZE],
  })
  return rows[0]?.reply_sealed ?? null
}

/** A claim on a key. Every write of the attempt names it. */
export type ClaimKey = { readonly org_id: OrgId; readonly key: string; readonly claim: string }

/**
 * Records what an attempt does, in the attempt's transaction. False if the claim was lost; then the attempt must do
 * nothing.
 */
export async function recordNote(q: Queryable, { org_id, key, claim: own }: ClaimKey, what: Buffer): Promise<boolean> {
  const { rowCount } = await q.query({
    name: 'idempotency.recordNote',
    text: 'UPDATE idempotency SET note = $4 WHERE org_id = $1 AND key = $2 AND claim = $3',
    values: [org_id, key, own, what],
  })
  return rowCount === 1
}

/** The statement that stores a reply. */
export function storeReply({ org_id, key, claim: own }: ClaimKey, replySealed: Buffer | LargeValue): Statement {
  return {
    name: 'idempotency.storeReply',
    text: 'UPDATE idempotency SET reply_sealed = $4, note = NULL WHERE org_id = $1 AND key = $2 AND claim = $3',
    values: [org_id, key, own, replySealed],
  }
}

/** The statement that ends a claim. The next attempt can then start at once. */
export function releaseClaim({ org_id, key, claim: own }: ClaimKey, now: Date): Statement {
  return {
    name: 'idempotency.releaseClaim',
    text: `UPDATE idempotency SET claimed_until = $4 WHERE org_id = $1 AND key = $2 AND claim = $3 AND reply_sealed IS NULL`,
    values: [org_id, key, own, now],
  }
}

/** The statement that deletes the row of a request that changed nothing. */
export function deleteClaim({ org_id, key, claim: own }: ClaimKey): Statement {
  return {
    name: 'idempotency.deleteClaim',
    text: 'DELETE FROM idempotency WHERE org_id = $1 AND key = $2 AND claim = $3',
    values: [org_id, key, own],
  }
}

const CLAIMS = column.columnList<ClaimKey>({
  org_id: column.uuid(({ org_id }) => org_id),
  key: column.text(({ key }) => key),
  claim: column.uuid((held) => held.claim),
})

/** The statement that extends claims. It changes nothing for a claim that was lost or that has a stored reply. */
export function renewClaims(held: readonly ClaimKey[], until: Date): Statement {
  return {
    name: 'idempotency.renewClaims',
    text: `UPDATE idempotency i SET claimed_until = $1 FROM ${CLAIMS.unnest({ alias: 'c', first: 2 })}
           WHERE i.org_id = c.org_id AND i.key = c.key AND i.claim = c.claim AND i.reply_sealed IS NULL`,
    values: [until, ...CLAIMS.valuesOf(held)],
  }
}

/** How many keys of an organization are stored, and the bytes of their replies. */
export type StoredKeys = { readonly keys: number; readonly bytes: number }

/** How many keys of an organization are stored, counted up to `limit`. */
export async function countKeys(q: Queryable, org: OrgId, limit: number): Promise<StoredKeys> {
  const { rows } = await q.query<StoredKeys>({
    name: 'idempotency.countKeys',
    text: `SELECT count(*) AS keys, coalesce(sum(octet_length(reply_sealed)), 0)::bigint AS bytes
           FROM (SELECT reply_sealed FROM idempotency WHERE org_id = $1 LIMIT $2) k`,
    values: [org, limit],
  })
  return rows[0] ?? { keys: 0, bytes: 0 }
}

/** Deletes up to `limit` expired keys; returns how many. */
export async function pruneExpired(q: Queryable, now: Date, limit: number): Promise<number> {
  const { rowCount } = await q.query({
    name: 'idempotency.pruneExpired',
    text: `DELETE FROM idempotency WHERE ctid = ANY(ARRAY(
             SELECT ctid FROM idempotency WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))`,
    values: [now, limit],
  })
  return rowCount
}
