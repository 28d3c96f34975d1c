import type { WorkerId } from '../../domain/ids.ts'
import type { WorkerBounds } from '../../domain/workers/worker-bounds.ts'
import type { Queryable } from '../postgres/database.ts'

/** A token with which one machine may join as a worker. */
export type JoinToken = {
  readonly id: string
  /** The name that the worker gets. Null: the worker chooses. */
  readonly name: string | null
  /** What its worker may claim. Null: tokens from before bounds existed. */
  readonly bounds: WorkerBounds | null
  readonly created_at: Date
  readonly expires_at: Date
}

/** A token, and the worker that used it, if any. */
export type UsableToken = Pick<JoinToken, 'id' | 'name' | 'bounds' | 'expires_at'> & {
  readonly used_at: Date | null
  readonly worker_id: WorkerId | null
}

/** Inserts a token with the hash of its text. */
export async function insert(q: Queryable, token: JoinToken & { readonly secretSha256: Buffer }): Promise<void> {
  await q.query({
    text: `INSERT INTO worker_tokens (id, name, secret_sha256, created_at, expires_at, bounds) VALUES ($1, $2, $3, $4, $5, $6)`,
    values: [
      token.id,
      token.name,
      token.secretSha256,
      token.created_at,
      token.expires_at,
      token.bounds === null ? null : JSON.stringify(token.bounds),
    ],
  })
}

/** The token with this hash, locked until the transaction ends, or null. */
export async function lock(tx: Queryable, secretSha256: Buffer): Promise<UsableToken | null> {
  const { rows } = await tx.query<UsableToken>({
    text: `SELECT id, name, bounds, expires_at, used_at, worker_id FROM worker_tokens WHERE secret_sha256 = $1 FOR UPDATE`,
    values: [secretSha256],
  })
  return rows[0] ?? null
}

/** Marks a token as used. */
export async function use(
  tx: Queryable,
  id: string,
  use: { readonly worker_id: WorkerId; readonly now: Date },
): Promise<void> {
  await tx.query({
    text: `UPDATE worker_tokens SET used_at = $2, worker_id = $3 WHERE id = $1`,
    values: [id, use.now, use.worker_id],
  })
}

/** Deletes at most `limit` tokens that were used or had expired by `endedBy`. Returns the number of deleted tokens. */
export async function prune(q: Queryable, endedBy: Date, limit: number): Promise<number> {
  const { rowCount } = await q.query({
    name: 'joinTokens.prune',
    text: `DELETE FROM worker_tokens WHERE id IN (
             SELECT id FROM worker_tokens WHERE coalesce(used_at, expires_at) <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)`,
    values: [endedBy, limit],
  })
  return rowCount
}
