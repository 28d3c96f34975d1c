/**
 * Users and their memberships. Users belong to the installation, not to an organization. Therefore only the system's
 * connection pool can write them.
 */
import type { Role } from '../../domain/orgs/caller.ts'
import type { MemberId, OrgId, UserId } from '../../domain/ids.ts'
import { ORG_MAXIMA } from '../../domain/org-maxima.ts'
import type { Queryable } from '../postgres/database.ts'

/** A membership with its user, as `GET /v1/members` shows it. */
export type MemberRow = {
  readonly id: MemberId
  readonly user_id: UserId
  readonly email: string
  readonly display_name: string | null
  readonly avatar_url: string | null
  readonly role: Role
  readonly joined_at: Date
}

const FIELDS = 'm.id, m.user_id, u.email, u.display_name, u.avatar_url, m.role, m.joined_at'

/**
 * Adds a user. If the e-mail exists already, updates its display name, unless the new one is null. Returns the user's
 * id.
 */
export async function saveUser(
  q: Queryable,
  user: { readonly id: UserId; readonly email: string; readonly display_name: string | null; readonly now: Date },
): Promise<UserId> {
  const { rows } = await q.query<{ readonly id: UserId }>({
    text: `INSERT INTO users AS u (id, email, display_name, created_at) VALUES ($1, $2, $3, $4)
           ON CONFLICT (email) DO UPDATE SET display_name = coalesce(excluded.display_name, u.display_name) RETURNING id`,
    values: [user.id, user.email, user.display_name, user.now],
  })
  const [row] = rows
  if (row === undefined) throw new Error('a saved user has no row')
  return row.id
}

/**
 * Makes a user a member. Returns false if the organization already has the most members. A second membership in the same organization
 * violates `members_org_user_key`. Lock the organization first, as for `countOwners`.
 */
export async function insert(
  tx: Queryable,
  member: {
    readonly id: MemberId
    readonly org_id: OrgId
    readonly user_id: UserId
    readonly role: Role
    readonly is_operator: boolean
    readonly now: Date
  },
): Promise<boolean> {
  const { id, org_id, user_id, role, is_operator, now } = member
  const { rowCount } = await tx.query({
    text: `INSERT INTO members (id, org_id, user_id, role, is_operator, joined_at)
           SELECT $1, $2, $3, $4, $5, $6 WHERE (SELECT count(*) FROM members WHERE org_id = $2) < $7`,
    values: [id, org_id, user_id, role, is_operator, now, ORG_MAXIMA.members],
  })
  return rowCount === 1
}

/** A member of an organization, named by e-mail, by the id of the membership, or by the user. */
export type MemberRef = { readonly email: string } | { readonly id: MemberId } | { readonly user_id: UserId }

/** An organization's member, or null. */
export async function find(q: Queryable, org: OrgId, which: MemberRef): Promise<MemberRow | null> {
  const [column, value] =
    'id' in which ? ['m.id', which.id] : 'email' in which ? ['u.email', which.email] : ['m.user_id', which.user_id]
  const { rows } = await q.query<MemberRow>({
    text: `SELECT ${FIELDS} FROM members m JOIN users u ON u.id = m.user_id WHERE m.org_id = $1 AND ${column} = $2`,
    values: [org, value],
  })
  return rows[0] ?? null
}

/** The owner of an organization who joined first, or null. */
export async function findFirstOwner(q: Queryable, org: OrgId): Promise<MemberRow | null> {
  const { rows } = await q.query<MemberRow>({
    text: `SELECT ${FIELDS} FROM members m JOIN users u ON u.id = m.user_id
           WHERE m.org_id = $1 AND m.role = 'owner' ORDER BY m.joined_at, m.id LIMIT 1`,
    values: [org],
  })
  return rows[0] ?? null
}

/** An organization of a user, with the role in it. */
export type OrgOfUser = {
  readonly id: OrgId
  readonly name: string
  readonly slug: string
  readonly role: Role
  readonly is_operator: boolean
}

/** The organizations of a user, the one that was joined first in front, at most `limit`. */
export async function orgsOf(q: Queryable, user: UserId, limit: number): Promise<readonly OrgOfUser[]> {
  const { rows } = await q.query<OrgOfUser>({
    text: `SELECT o.id, o.name, o.slug, m.role, m.is_operator FROM members m JOIN orgs o ON o.id = m.org_id
           WHERE m.user_id = $1 ORDER BY m.joined_at, m.id LIMIT $2`,
    values: [user, limit],
  })
  return rows
}

/** The user with this e-mail, or null. The user stays until the transaction ends. */
export async function findUser(tx: Queryable, email: string): Promise<UserId | null> {
  const { rows } = await tx.query<{ readonly id: UserId }>({
    text: 'SELECT id FROM users WHERE email = $1 FOR KEY SHARE',
    values: [email],
  })
  return rows[0]?.id ?? null
}

/** A page of an organization's members, newest first; `before` is the last member of the previous page. */
export async function page(
  q: Queryable,
  org: OrgId,
  before: string | null,
  limit: number,
): Promise<readonly MemberRow[]> {
  const { rows } = await q.query<MemberRow>({
    name: before === null ? 'members.page' : 'members.page.before',
    text: `SELECT ${FIELDS} FROM members m JOIN users u ON u.id = m.user_id
           WHERE m.org_id = $1 ${before === null ? '' : 'AND m.id < $3'} ORDER BY m.id DESC LIMIT $2`,
    values: before === null ? [org, limit] : [org, limit, before],
  })
  return rows
}

/**
 * How many owners an organization has. Lock the organization first; then the number can't change until the transaction
 * ends.
 */
export async function countOwners(tx: Queryable, org: OrgId): Promise<number> {
  const { rows } = await tx.query<{ readonly count: number }>({
    text: `SELECT count(*)::integer AS count FROM members WHERE org_id = $1 AND role = 'owner'`,
    values: [org],
  })
  return rows[0]?.count ?? 0
}

/** Changes a member's role. */
export async function setRole(tx: Queryable, org: OrgId, id: MemberId, role: Role): Promise<void> {
  await tx.query({ text: 'UPDATE members SET role = $3 WHERE org_id = $1 AND id = $2', values: [org, id, role] })
}

/** Makes a member an operator of the installation, or ends that. False if nothing changed. */
export async function setOperator(tx: Queryable, org: OrgId, id: MemberId, is_operator: boolean): Promise<boolean> {
  const { rowCount } = await tx.query({
    text: 'UPDATE members SET is_operator = $3 WHERE org_id = $1 AND id = $2 AND is_operator <> $3',
    values: [org, id, is_operator],
  })
  return rowCount === 1
}

/** Keeps a user from being added to an organization until the transaction ends. */
export async function lockUser(tx: Queryable, id: UserId): Promise<void> {
  await tx.query({ text: 'SELECT FROM users WHERE id = $1 FOR UPDATE', values: [id] })
}

/** Deletes a user who is no member of any organization any more. Lock the user first. */
export async function removeStranger(tx: Queryable, id: UserId): Promise<void> {
  const text = 'DELETE FROM users WHERE id = $1 AND NOT EXISTS (SELECT FROM members WHERE user_id = $1)'
  await tx.query({ text, values: [id] })
}

/** Ends a membership, with its sessions and links. The user's row stays: see `removeStranger`. */
export async function remove(tx: Queryable, org: OrgId, id: MemberId): Promise<void> {
  await tx.query({ text: 'DELETE FROM members WHERE org_id = $1 AND id = $2', values: [org, id] })
}
