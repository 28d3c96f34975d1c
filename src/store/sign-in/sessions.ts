/** Sessions of members in a browser. The secret of a session is never stored; its SHA-256 is. */
import type { OrgId, SessionId, UserId } from '../../domain/ids.ts'
import type { Role } from '../../domain/orgs/caller.ts'
import type { SignedInBy } from '../../domain/sign-in/session.ts'
import type { Queryable } from '../postgres/database.ts'

/** The membership that a session or a link belongs to. */
export type Membership = { readonly org_id: OrgId; readonly user_id: UserId }

export type NewSession = Membership & {
  readonly id: SessionId
  readonly secretSha256: Buffer
  readonly signed_in_by: SignedInBy
  /** Whether the session opens no other organization of its user. */
  readonly is_confined: boolean
  readonly user_agent: string | null
  readonly now: Date
  readonly expires_at: Date
}

/** Keeps a membership from being removed until the transaction ends. False if it is gone. */
export async function holdMembership(tx: Queryable, { org_id, user_id }: Membership): Promise<boolean> {
  const { rowCount } = await tx.query({
    text: 'SELECT 1 FROM members WHERE org_id = $1 AND user_id = $2 FOR KEY SHARE',
    values: [org_id, user_id],
  })
  return rowCount === 1
}

/** Inserts a session, and deletes the longest unused ones of the membership beyond `max`. */
export async function insert(tx: Queryable, session: NewSession, max: number): Promise<void> {
  const { org_id, user_id } = session
  await tx.query({
    text: `DELETE FROM member_sessions WHERE id IN (
             SELECT id FROM member_sessions WHERE org_id = $1 AND user_id = $2 ORDER BY last_seen_at DESC, id DESC OFFSET $3)`,
    values: [org_id, user_id, max - 1],
  })
  await tx.query({
    text: `INSERT INTO member_sessions
             (id, org_id, user_id, secret_sha256, signed_in_by, is_confined, user_agent, created_at, last_seen_at, expires_at)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8, $9)`,
    values: [
      session.id,
      org_id,
      user_id,
      session.secretSha256,
      session.signed_in_by,
      session.is_confined,
      session.user_agent,
      session.now,
      session.expires_at,
    ],
  })
}

/** A session that is valid until `expires_at`, with its member as it is now. */
export type ActiveSession = Membership & {
  readonly id: SessionId
  readonly signed_in_by: SignedInBy
  readonly is_confined: boolean
  readonly last_seen_at: Date
  readonly expires_at: Date
  readonly role: Role
  readonly is_operator: boolean
  readonly email: string
  readonly display_name: string | null
}

/**
 * Finds the session whose secret has this hash. Null if there is none, if it expired at `now`, or if it was last seen before
 * `seenSince`.
 */
export async function findActive(
  q: Queryable,
  secretSha256: Buffer,
  { now, seenSince }: { readonly now: Date; readonly seenSince: Date },
): Promise<ActiveSession | null> {
  const { rows } = await q.query<ActiveSession>({
    name: 'member_sessions.findActive',
    text: `SELECT s.id, s.org_id, s.user_id, s.signed_in_by, s.is_confined, s.last_seen_at, s.expires_at,
             m.role, m.is_operator, u.email, u.display_name
           FROM member_sessions s JOIN members m USING (org_id, user_id) JOIN users u ON u.id = s.user_id
           WHERE s.secret_sha256 = $1 AND s.expires_at > $2 AND s.last_seen_at > $3`,
    values: [secretSha256, now, seenSince],
  })
  return rows[0] ?? null
}

/** Records that a session was used. An earlier time never replaces a later one. */
export async function recordUse(q: Queryable, id: SessionId, now: Date): Promise<void> {
  await q.query({
    name: 'member_sessions.recordUse',
    text: 'UPDATE member_sessions SET last_seen_at = $2 WHERE id = $1 AND last_seen_at < $2',
    values: [id, now],
  })
}

/** A session as its user sees it. */
export type SessionRow = {
  readonly id: SessionId
  readonly org_id: OrgId
  readonly org_name: string
  readonly signed_in_by: SignedInBy
  readonly user_agent: string | null
  readonly created_at: Date
  readonly last_seen_at: Date
  readonly expires_at: Date
}

/** Which sessions of a user: all, or those in one organization. */
export type OfUser = { readonly user_id: UserId; readonly org_id: OrgId | null }

/** The valid sessions of a user, the latest first, at most `limit`. */
export async function listOfUser(
  q: Queryable,
  { user_id, org_id }: OfUser,
  { now, seenSince, limit }: { readonly now: Date; readonly seenSince: Date; readonly limit: number },
): Promise<readonly SessionRow[]> {
  const { rows } = await q.query<SessionRow>({
    text: `SELECT s.id, s.org_id, o.name AS org_name, s.signed_in_by, s.user_agent, s.created_at, s.last_seen_at, s.expires_at
           FROM member_sessions s JOIN orgs o ON o.id = s.org_id
           WHERE s.user_id = $1 AND ($2::uuid IS NULL OR s.org_id = $2) AND s.expires_at > $3 AND s.last_seen_at > $4
           ORDER BY s.id DESC LIMIT $5`,
    values: [user_id, org_id, now, seenSince, limit],
  })
  return rows
}

/** Deletes one session of a user. False if there is none. */
export async function remove(tx: Queryable, { user_id, org_id }: OfUser, id: SessionId): Promise<boolean> {
  const { rowCount } = await tx.query({
    text: 'DELETE FROM member_sessions WHERE id = $1 AND user_id = $2 AND ($3::uuid IS NULL OR org_id = $3)',
    values: [id, user_id, org_id],
  })
  return rowCount === 1
}

/** Deletes the session whose secret has this hash. Returns its id, or null if there is none. */
export async function removeByHash(tx: Queryable, secretSha256: Buffer): Promise<SessionId | null> {
  const { rows } = await tx.query<{ readonly id: SessionId }>({
    text: 'DELETE FROM member_sessions WHERE secret_sha256 = $1 RETURNING id',
    values: [secretSha256],
  })
  return rows[0]?.id ?? null
}

/** Deletes all sessions of a membership. Returns their ids. */
export async function removeOfMember(tx: Queryable, { org_id, user_id }: Membership): Promise<readonly SessionId[]> {
  const { rows } = await tx.query<{ readonly id: SessionId }>({
    text: 'DELETE FROM member_sessions WHERE org_id = $1 AND user_id = $2 RETURNING id',
    values: [org_id, user_id],
  })
  return rows.map(({ id }) => id)
}

/**
 * Gives the sessions of a membership new ids and returns the earlier ones. What a session has open is watched by its id, so it
 * ends, and the session goes on with the rights that its member has now.
 */
export async function replaceIds(tx: Queryable, { org_id, user_id }: Membership): Promise<readonly SessionId[]> {
  const { rows } = await tx.query<{ readonly id: SessionId }>({
    text: `WITH earlier AS (SELECT id FROM member_sessions WHERE org_id = $1 AND user_id = $2 FOR UPDATE)
           UPDATE member_sessions s SET id = gen_random_uuid() FROM earlier WHERE s.id = earlier.id RETURNING earlier.id`,
    values: [org_id, user_id],
  })
  return rows.map(({ id }) => id)
}

/** Deletes up to `limit` sessions that had expired by `now`, or were last seen before `seenSince`. Returns how many. */
export async function prune(
  q: Queryable,
  { now, seenSince, limit }: { readonly now: Date; readonly seenSince: Date; readonly limit: number },
): Promise<number> {
  const { rowCount } = await q.query({
    name: 'member_sessions.prune',
    text: `DELETE FROM member_sessions WHERE id IN (SELECT id FROM member_sessions
             WHERE expires_at <= $1 OR last_seen_at <= $2 LIMIT $3 FOR UPDATE SKIP LOCKED)`,
    values: [now, seenSince, limit],
  })
  return rowCount
}
