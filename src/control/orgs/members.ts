/**
 * The members of an organization. At least one of them is an owner. Every change that may remove an owner locks the
 * organization first, so that two changes at once can't remove the last two owners.
 */
import type { OrgActor, Role } from '../../domain/orgs/caller.ts'
import { EMAIL_RULE, parseEmail } from '../../domain/orgs/email.ts'
import { asId, type MemberId, type UserId } from '../../domain/ids.ts'
import { isName, NAME_RULE } from '../../domain/names.ts'
import { Problem } from '../../domain/problem.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import { violatedConstraint, type Queryable } from '../../store/postgres/database.ts'
import * as members from '../../store/orgs/members.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { readPage, type Page, type PageInput } from '../requests/page.ts'
import { recordEvent } from '../events/record-event.ts'

export type Member = members.MemberRow

export type NewMember = { readonly email: string; readonly display_name: string | null; readonly role: Role }

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
 * Throws `invalid_request` for an invalid e-mail or name, and `name_already_exists` for a person who is a member
 * already.
 */
export async function addMember(deps: WriteDeps, acting: OrgActor, input: NewMember): Promise<MemberId> {
  const email = requireEmail(input.email)
  const { display_name } = input
  if (display_name !== null && !isName(display_name)) throw invalidRequest('name', display_name, NAME_RULE)
  try {
    return await deps.db.transaction('system', (tx) => insertMember(deps, tx, acting, { ...input, email }))
  } catch (error) {
    if (violatedConstraint(error) !== 'members_org_user_key') throw error
    throw new Problem('name_already_exists', {
      message: `${email} is a member already`,
      details: { field: 'email', seen: email, accepted: 'the e-mail address of someone who is not a member' },
      cause: error,
    })
  }
}

/** Adds a member and records the event, in the caller's system transaction. The e-mail must be parsed already. */
export async function insertMember(
  deps: Pick<WriteDeps, 'clock' | 'uuids'>,
  tx: Queryable,
  acting: OrgActor,
  { email, display_name, role }: NewMember,
): Promise<MemberId> {
  const now = deps.clock.now()
  const user_id = await members.saveUser(tx, { id: asId<UserId>(deps.uuids.next()), email, display_name, now })
  const id = asId<MemberId>(deps.uuids.next())
  await members.insert(tx, { id, org_id: acting.org_id, user_id, role, now })
  await recordEvent(deps, tx, { ...acting, event_type: 'member_added', payload: { member_id: id, user_id, role } })
  return id
}

/** Changes a member's role. May be repeated. Throws `not_found`, and `forbidden` for the last owner. */
export async function changeMemberRole(
  deps: WriteDeps,
  acting: OrgActor,
  input: { email: string; role: Role },
): Promise<void> {
  const { role } = input
  await deps.db.transaction('system', async (tx) => {
    const member = await lockMember(tx, acting, input.email)
    if (member.role === role) return
    if (member.role === 'owner') await refuseLastOwner(tx, acting)
    await members.setRole(tx, acting.org_id, member.id, role)
    const payload = { member_id: member.id, user_id: member.user_id, role, from: member.role }
    await recordEvent(deps, tx, { ...acting, event_type: 'member_role_changed', payload })
  })
}

/** Removes a member. Throws `not_found`, and `forbidden` for the last owner. */
export async function removeMember(deps: WriteDeps, acting: OrgActor, email: string): Promise<void> {
  await deps.db.transaction('system', async (tx) => {
    const member = await lockMember(tx, acting, email)
    if (member.role === 'owner') await refuseLastOwner(tx, acting)
    await members.remove(tx, acting.org_id, member.id)
    const payload = { member_id: member.id, user_id: member.user_id, role: member.role }
    await recordEvent(deps, tx, { ...acting, event_type: 'member_removed', payload })
  })
}

/** Locks the organization and reads a member. Every change of members except an addition takes this lock first. */
async function lockMember(tx: Queryable, { org_id }: OrgActor, email: string): Promise<Member> {
  const address = requireEmail(email)
  await orgs.lock(tx, org_id)
  const member = await members.findByEmail(tx, org_id, address)
  if (member === null) throw new Problem('not_found', { message: `${address} is not a member of this organization` })
  return member
}

async function refuseLastOwner(tx: Queryable, { org_id }: OrgActor): Promise<void> {
  if ((await members.countOwners(tx, org_id)) > 1) return
  throw new Problem('forbidden', {
    message: 'forbidden: an organization needs an owner; make another member an owner first',
    details: { field: 'role', seen: 'owner', accepted: 'a change that leaves an owner' },
  })
}

function requireEmail(text: string): string {
  const email = parseEmail(text)
  if (email === null) throw invalidRequest('email', text, EMAIL_RULE)
  return email
}
