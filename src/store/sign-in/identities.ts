/** Who people are at providers of OpenID Connect. */
import type { UserId } from '../../domain/ids.ts'
import type { Queryable } from '../postgres/database.ts'

/** Forgets the identities of a user who is no member of any organization any more. */
export async function removeOfStranger(tx: Queryable, user_id: UserId): Promise<void> {
  await tx.query({
    text: `DELETE FROM user_identities WHERE user_id = $1 AND NOT EXISTS (SELECT 1 FROM members WHERE user_id = $1)`,
    values: [user_id],
  })
}
