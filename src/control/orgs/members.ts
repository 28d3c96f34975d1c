/**
 * The members of an organization. At least one of them is an owner. Every change locks the organization first, so that two changes at once
 * can neither remove the last two owners nor exceed the maximum.
 */
import type { Caller, OrgActor, Role } from '../../domain/orgs/caller.ts'
import { EMAIL_RULE, parseEmail } from '../../domain/orgs/email.ts'
import { tooManyOf } from '../../domain/org-maxima.ts'
import { asId, type MemberId, type SessionId, type UserId } from '../../domain/ids.ts'
import { isName, NAME_RULE } from '../../domain/names.ts'
import { Problem } from '../../domain/problem.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import { violatedConstraint, type Queryable } from '../../store/postgres/database.ts'
import * as members from '../../store/orgs/members.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import { notifyAtCommit } from '../../store/postgres/notification-connection.ts'
import * as identities from '../../store/sign-in/identities.ts'
import * as sessions from '../../store/sign-in/sessions.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { readPage, type Page, type PageInput } from '../requests/page.ts'
import { recordEvent } from '../events/record-event.ts'
import { sessionTopic } from '../topics.ts'

export type Member = members.MemberRow

export type NewMember = {
  readonly email: string
  readonly display_name: string | null
  readonly role: Role
  /** Whether the member is an operator of the installation. Absent: no. */
  readonly isOperator?: boolean
}

/** Who changes members. Someone with a role may not do everything; the operator, without one, may. */
export type MemberAdmin = OrgActor & Partial<Pick<Caller, 'role'>>

/** A page of the organization's members, newest first. Throws `invalid_request` for a bad cursor. */
export function listMembers(
  deps: Pick<BaseDeps, 'db'>,
  { org_id }: Pick<OrgActor, 'org_id'>,
  input: PageInput,
): Promise<Page<Member>> {
  return readPage('members', input, (after, count) =>
    deps.db.asOrg(org_id, (q) => members.page(q, org_id, after, count)),
  )
}

/**
 * Adds a person as a member. An e-mail address identifies one person across all organizations of the installation.
 * Throws `invalid_request` for an invalid e-mail or name, `member_already_exists` for a person who is a member
 * already, and `quota_exceeded`.
 */
export async function addMember(deps: WriteDeps, acting: OrgActor, input: NewMember): Promise<MemberId> {
  const email = requireEmail(input.email)
  const { display_name } = input
  if (display_name !== null && !isName(display_name)) throw invalidRequest('name', display_name, NAME_RULE)
  const { id } = await refuseKnown(email, () =>
    deps.db.transaction('system', (tx) => insertMember(deps, tx, acting, { ...input, email })),
  )
  return id
}

/** Does `insert`, and throws `member_already_exists` if the person is a member already. */
export async function refuseKnown<Result>(email: string, insert: () => Promise<Result>): Promise<Result> {
  try {
    return await insert()
  } catch (error) {
    if (violatedConstraint(error) !== 'members_org_user_key') throw error
    throw new Problem('member_already_exists', {
      message: `${email} is a member already`,
      details: { field: 'email', seen: email, accepted: 'the e-mail address of someone who is not a member' },
      cause: error,
    })
  }
}

/**
 * Adds a member and records the event, in the caller's system transaction. The e-mail must be parsed already. Throws
 * `quota_exceeded`.
 */
export async function insertMember(
  deps: Pick<WriteDeps, 'clock' | 'uuids'>,
  tx: Queryable,
  acting: OrgActor,
  { email, display_name, role, isOperator = false }: NewMember,
): Promise<Pick<Member, 'id' | 'user_id'>> {
  const now = deps.clock.now()
  await orgs.lock(tx, acting.org_id)
  const user_id = await members.saveUser(tx, { id: asId<UserId>(deps.uuids.next()), email, display_name, now })
  const id = asId<MemberId>(deps.uuids.next())
  const row = { id, org_id: acting.org_id, user_id, role, is_operator: isOperator, now }
  if (!(await members.insert(tx, row))) throw tooManyOf('members')
  const payload = { member_id: id, user_id, role }
  await recordEvent(deps, tx, { ...acting, event_type: 'member_added', payload })
  return { id, user_id }
}

/**
 * Changes a member's role, from the next request of its sessions on; what they have open ends. May be repeated. Throws
 * `member_not_found`, and `forbidden` for the last owner, and for an owner if the one who asks is none.
 */
export async function changeMemberRole(
  deps: WriteDeps,
  acting: MemberAdmin,
  { role, ...which }: members.MemberRef & { readonly role: Role },
): Promise<Member> {
  return deps.db.transaction('system', async (tx) => {
    const member = await lockMember(tx, acting, which)
    if (member.role === role) return member
    requireRightOver(acting, member.role)
    requireRightOver(acting, role)
    if (member.role === 'owner') await refuseLastOwner(tx, acting)
    await members.setRole(tx, acting.org_id, member.id, role)
    await endOpenWork(tx, acting, member)
    const payload = { ...payloadOf(member), role, from: member.role }
    await recordEvent(deps, tx, { ...acting, event_type: 'member_role_changed', payload })
    return { ...member, role }
  })
}

/**
 * Removes a member, and ends the sessions and the sign-in link. The user goes with the last membership. Throws `member_not_found`, and
 * `forbidden` as `changeMemberRole` does.
 */
export async function removeMember(deps: WriteDeps, acting: MemberAdmin, which: members.MemberRef): Promise<void> {
  await deps.db.transaction('system', async (tx) => {
    const member = await lockMember(tx, acting, which)
    requireRightOver(acting, member.role)
    if (member.role === 'owner') await refuseLastOwner(tx, acting)
    await members.lockUser(tx, member.user_id)
    const ended = await sessions.removeOfMember(tx, { ...acting, user_id: member.user_id })
    await members.remove(tx, acting.org_id, member.id)
    await identities.removeOfStranger(tx, member.user_id)
    await members.removeStranger(tx, member.user_id)
    await recordEvent(deps, tx, { ...acting, event_type: 'member_removed', payload: payloadOf(member) })
    await notifyEnded(tx, ended)
  })
}

/**
 * Makes a member of the first organization an operator of the installation, or ends that. Operators read what is of all
 * organizations. May be repeated. Throws `member_not_found`, and `forbidden` in another organization.
 */
export async function setOperator(
  deps: WriteDeps,
  acting: OrgActor,
  { isOperator, ...which }: members.MemberRef & { readonly isOperator: boolean },
): Promise<void> {
  await deps.db.transaction('system', async (tx) => {
    const member = await lockMember(tx, acting, which)
    if ((await orgs.findFirst(tx))?.id !== acting.org_id)
      throw new Problem('forbidden', {
        message: 'forbidden: operators are members of the first organization',
        details: { field: 'org', seen: acting.org_id, accepted: 'the first organization of the installation' },
      })
    if (!(await members.setOperator(tx, acting.org_id, member.id, isOperator))) return
    await endOpenWork(tx, acting, member)
    const payload = { ...payloadOf(member), is_operator: isOperator }
    await recordEvent(deps, tx, { ...acting, event_type: 'member_operator_changed', payload })
  })
}

/** Ends all sessions of a member. Returns how many there were. Throws `member_not_found`. */
export async function signOutMember(deps: WriteDeps, acting: OrgActor, which: members.MemberRef): Promise<number> {
  return deps.db.transaction('system', async (tx) => {
    const { user_id } = await lockMember(tx, acting, which)
    const ended = await sessions.removeOfMember(tx, { ...acting, user_id })
    await notifyEnded(tx, ended)
    return ended.length
  })
}

/** Locks the organization and reads a member. */
export async function lockMember(tx: Queryable, { org_id }: OrgActor, which: members.MemberRef): Promise<Member> {
  const ref = 'email' in which ? { email: requireEmail(which.email) } : which
  await orgs.lock(tx, org_id)
  const member = await members.find(tx, org_id, ref)
  if (member !== null) return member
  const who = 'email' in ref ? ref.email : 'no person with this id'
  throw new Problem('member_not_found', { message: `resource not found: ${who} is not a member of this organization` })
}

/**
 * Throws `forbidden` if someone else than an owner or the operator would make or change an owner. A key may not, whatever its scopes: an
 * admin may make keys, and would become an owner by one.
 */
export function requireRightOver({ role: ofCaller = 'owner', actor }: MemberAdmin, role: Role): void {
  const own = actor.kind === 'api_key' ? 'admin' : ofCaller
  if (role !== 'owner' || own === 'owner') return
  throw new Problem('forbidden', {
    message: 'forbidden: only an owner makes, changes and removes owners',
    details: { field: 'role', seen: own, accepted: 'owner' },
  })
}

/** Makes every process look at what these sessions have open. */
async function notifyEnded(tx: Queryable, ended: readonly SessionId[]): Promise<void> {
  if (ended.length > 0) await notifyAtCommit(tx, ended.map(sessionTopic))
}

/** Ends what a member's sessions have open. The sessions go on with the rights that the member has now. */
async function endOpenWork(tx: Queryable, { org_id }: OrgActor, { user_id }: Member): Promise<void> {
  const ended = await sessions.replaceIds(tx, { org_id, user_id })
  await notifyEnded(tx, ended)
}

function payloadOf({ id, user_id, role }: Member) {
  return { member_id: id, user_id, role }
}

async function refuseLastOwner(tx: Queryable, { org_id }: OrgActor): Promise<void> {
  if ((await members.countOwners(tx, org_id)) > 1) return
  throw new Problem('forbidden', {
    message: 'forbidden: an organization needs an owner; make another member an owner first',
    details: { field: 'role', seen: 'owner', accepted: 'a change that leaves an owner' },
  })
}

/** Parses an e-mail address. Throws `invalid_request`. */
export function requireEmail(text: string): string {
  const email = parseEmail(text)
  if (email === null) throw invalidRequest('email', text, EMAIL_RULE)
  return email
}
