/** Who people are at providers of OpenID Connect. */
import type { UserId } from '../../domain/ids.ts'
import type { Queryable } from '../postgres/database.ts'

/** A person at a provider: the issuer's URL, and the issuer's own id of the person. */
export type Identity = { readonly issuer: string; readonly subject: string }

/** The user who has this identity, or null. */
export async function findUser(q: Queryable, { issuer, subject }: Identity): Promise<UserId | null> {
  const { rows } = await q.query<{ readonly user_id: UserId }>({
    text: 'SELECT user_id FROM user_identities WHERE issuer = $1 AND subject = $2',
    values: [issuer, subject],
  })
  return rows[0]?.user_id ?? null
}

/**
 * Gives a user an identity. False if the user has another one of this issuer, or somebody else has this one. May be repeated.
 */
export async function insert(
  tx: Queryable,
  { issuer, subject, user_id, now }: Identity & { readonly user_id: UserId; readonly now: Date },
): Promise<boolean> {
  await tx.query({
    text: 'INSERT INTO user_identities (issuer, subject, user_id, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING',
    values: [issuer, subject, user_id, now],
  })
  return (await findUser(tx, { issuer, subject })) === user_id
}

/** Forgets the identities of a user who is no member of any organization any more. */
export async function removeOfStranger(tx: Queryable, user_id: UserId): Promise<void> {
  await tx.query({
    text: `DELETE FROM user_identities WHERE user_id = $1 AND NOT EXISTS (SELECT 1 FROM members WHERE user_id = $1)`,
    values: [user_id],
  })
}
