/** One-time links with which members sign in. Their tokens are shown once; only hashes are stored. */
import { formatSignInToken, hashSecret, isSignInToken } from '../../domain/orgs/api-key.ts'
import type { OrgActor, Role } from '../../domain/orgs/caller.ts'
import type { OrgId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { INVITATION_MS, SIGN_IN_LINK_MS } from '../../domain/sign-in/session.ts'
import * as members from '../../store/orgs/members.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as links from '../../store/sign-in/links.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import { insertMember, lockMember, refuseKnown, requireEmail, requireRightOver, type Member, type MemberAdmin } from '../orgs/members.ts' // prettier-ignore
import { startSession, type NewSession } from './sessions.ts'

type LinkDeps = WriteDeps & Pick<BaseDeps, 'random'>

/** A link's token, which works once and until `expires_at`. */
export type SignInLink = { readonly token: string; readonly email: string; readonly expires_at: Date }

/**
 * Makes a link for a member; it replaces an earlier one. Null as the e-mail address: for the owner who joined first. Only the
 * operator may do this, because the link acts as that person, in all organizations of the person. Throws `member_not_found`.
 */
export async function createSignInLink(deps: LinkDeps, acting: OrgActor, email: string | null): Promise<SignInLink> {
  return deps.db.transaction('system', async (tx) => {
    const member = email === null ? await requireOwner(tx, acting.org_id) : await lockMember(tx, acting, { email })
    return insertLink(deps, tx, acting, { member, isConfined: false, lastsMs: SIGN_IN_LINK_MS })
  })
}

async function requireOwner(tx: Queryable, org: OrgId): Promise<Member> {
  const owner = await members.findFirstOwner(tx, org)
  if (owner === null) throw new Problem('member_not_found')
  return owner
}

/** A new member, and the link with which they sign in the first time. */
export type Invitation = SignInLink & { readonly member: Member }

/**
 * Adds a person as a member and makes a link for them. If an organization invites, the link opens this organization alone: the person may
 * belong to others, which the one who invites must not enter. Throws `invalid_request`, `member_already_exists`, `quota_exceeded`, and
 * `forbidden` for an owner if the one who invites is none.
 */
export async function inviteMember(
  deps: LinkDeps,
  acting: MemberAdmin,
  input: { readonly email: string; readonly role: Role },
): Promise<Invitation> {
  const email = requireEmail(input.email)
  requireRightOver(acting, input.role)
  return refuseKnown(email, () =>
    deps.db.transaction('system', async (tx) => {
      const { id } = await insertMember(deps, tx, acting, { email, role: input.role, display_name: null })
      const member = await members.find(tx, acting.org_id, { id })
      if (member === null) throw new Error('a member that was just added is gone')
      const isConfined = acting.actor.kind !== 'system'
      const link = await insertLink(deps, tx, acting, { member, isConfined, lastsMs: INVITATION_MS })
      return { ...link, member }
    }),
  )
}

async function insertLink(
  deps: Pick<LinkDeps, 'clock' | 'uuids' | 'random'>,
  tx: Queryable,
  acting: OrgActor,
  { member, isConfined, lastsMs }: { readonly member: Member; readonly isConfined: boolean; readonly lastsMs: number },
): Promise<SignInLink> {
  const { org_id } = acting
  const { id: member_id, user_id, role, email } = member
  const token = formatSignInToken(deps.random.bytes(32))
  const now = deps.clock.now()
  const expires_at = new Date(now.getTime() + lastsMs)
  const link = { org_id, user_id, secretSha256: hashSecret(token), is_confined: isConfined, now, expires_at }
  await links.save(tx, link)
  const payload = { member_id, user_id, role, expires_at: expires_at.toISOString() }
  await recordEvent(deps, tx, { ...acting, event_type: 'sign_in_link_created', payload })
  return { token, email, expires_at }
}

/** Signs in by the token of a link, which is used up. Throws `invalid_sign_in_link`, whatever is wrong with it. */
export async function signInByLink(
  deps: LinkDeps,
  { token, user_agent }: { readonly token: string; readonly user_agent: string | null },
): Promise<NewSession> {
  const started = !isSignInToken(token)
    ? null
    : await deps.db.transaction('system', async (tx) => {
        const link = await links.use(tx, hashSecret(token))
        if (link === null || link.expires_at <= deps.clock.now()) return null
        const { org_id, user_id, is_confined } = link
        const member = await members.find(tx, org_id, { user_id })
        return member === null
          ? null
          : startSession(deps, tx, { ...member, org_id, by: 'link', is_confined, user_agent })
      })
  if (started === null) throw new Problem('invalid_sign_in_link')
  return started
}
