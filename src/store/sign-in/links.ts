/** One-time links with which members sign in. The secret of a link is never stored; its SHA-256 is. */
import type { Queryable } from '../postgres/database.ts'
import type { Membership } from './sessions.ts'

export type NewLink = Membership & {
  readonly secretSha256: Buffer
  /** Whether the session opens no other organization of the user. */
  readonly is_confined: boolean
  readonly now: Date
  readonly expires_at: Date
}

/** Saves the link of a membership. It replaces an earlier one. */
export async function save(tx: Queryable, link: NewLink): Promise<void> {
  await tx.query({
    text: `INSERT INTO sign_in_links (org_id, user_id, secret_sha256, is_confined, created_at, expires_at)
           VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (org_id, user_id) DO UPDATE SET
             secret_sha256 = excluded.secret_sha256, is_confined = excluded.is_confined,
             created_at = excluded.created_at, expires_at = excluded.expires_at`,
    values: [link.org_id, link.user_id, link.secretSha256, link.is_confined, link.now, link.expires_at],
  })
}

/** A link that was just used. */
export type UsedLink = Membership & { readonly is_confined: boolean; readonly expires_at: Date }

/** Deletes the link whose secret has this hash, and returns it. Of requests at once, one gets it. */
export async function use(tx: Queryable, secretSha256: Buffer): Promise<UsedLink | null> {
  const { rows } = await tx.query<UsedLink>({
    name: 'sign_in_links.use',
    text: 'DELETE FROM sign_in_links WHERE secret_sha256 = $1 RETURNING org_id, user_id, is_confined, expires_at',
    values: [secretSha256],
  })
  return rows[0] ?? null
}

/** Deletes up to `limit` links that had expired by `now`. Returns how many. */
export async function prune(q: Queryable, now: Date, limit: number): Promise<number> {
  const { rowCount } = await q.query({
    name: 'sign_in_links.prune',
    text: `DELETE FROM sign_in_links WHERE secret_sha256 IN (
             SELECT secret_sha256 FROM sign_in_links WHERE expires_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)`,
    values: [now, limit],
  })
  return rowCount
}
