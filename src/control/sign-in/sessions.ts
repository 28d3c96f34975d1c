/**
 * Sessions of members who are signed in in a browser. A session acts in one organization, with the role that its member has at the
 * moment of each request. It is looked up for every request, so its end counts at once in every server process.
 */
import { formatSessionToken, hashSecret, hashSecretBase64, isSessionToken } from '../../domain/orgs/api-key.ts'
import { SCOPE_OF_ROLE, type Actor, type Caller } from '../../domain/orgs/caller.ts'
import { redactEmail } from '../../domain/orgs/email.ts'
import { asId, type ApiKeyId, type OrgId, type SessionId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import {
  SEEN_RESOLUTION_MS,
  SESSION_IDLE_MS,
  SESSION_MAX_MS,
  SESSIONS_OF_MEMBER_MAX,
  type SignedInBy,
} from '../../domain/sign-in/session.ts'
import * as members from '../../store/orgs/members.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import { notifyAtCommit } from '../../store/postgres/notification-connection.ts'
import * as sessions from '../../store/sign-in/sessions.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import type { KeyCache } from '../orgs/key-cache.ts'
import { recordEvent } from '../events/record-event.ts'
import { sessionTopic } from '../topics.ts'

/** A member who is signed in, by a session. */
export type SignedIn = { readonly caller: Caller; readonly session: sessions.ActiveSession }

/** A new session. Only its secret opens it, and only this answer has the secret. */
export type NewSession = { readonly token: string; readonly lastsMs: number }

/** Remembers which sessions were valid, so that the limit on guesses doesn't stop them. It answers nothing by itself. */
export type KnownSessions = { readonly knownSessions: KeyCache<SignedIn> }

/**
 * The member of a session, or null for an unknown or expired one. `onUnknown` is called before the look-up of a session that
 * this process doesn't remember. If it throws, nothing is looked up.
 */
export async function authenticateSession(
  deps: Pick<BaseDeps, 'db' | 'clock' | 'log'> & KnownSessions,
  token: string,
  onUnknown: () => void = () => undefined,
): Promise<SignedIn | null> {
  if (!isSessionToken(token)) return null
  return deps.knownSessions.find(hashSecretBase64(token), deps.clock.monotonicMs(), async ({ wasKnown }) => {
    if (!wasKnown) onUnknown()
    return lookUp(deps, token)
  })
}

async function lookUp(deps: Pick<BaseDeps, 'db' | 'clock' | 'log'>, token: string): Promise<SignedIn | null> {
  const now = deps.clock.now()
  const session = await deps.db.asSystem((q) =>
    sessions.findActive(q, hashSecret(token), { now, seenSince: seenSince(now) }),
  )
  if (session === null) return null
  if (now.getTime() - session.last_seen_at.getTime() >= SEEN_RESOLUTION_MS) void recordUse(deps, session.id, now) // it never rejects
  const { id, org_id, role, is_operator: isOperator } = session
  const caller = { org_id, api_key_id: asId<ApiKeyId>(id), role, scope: SCOPE_OF_ROLE[role], isOperator }
  return { caller: { ...caller, actor: actorOf(session) }, session }
}

/** Records a use. If it can't be written, the failure is logged and the next request tries again. */
async function recordUse({ db, log }: Pick<BaseDeps, 'db' | 'log'>, id: SessionId, now: Date): Promise<void> {
  try {
    await db.asSystem((q) => sessions.recordUse(q, id, now))
  } catch (error) {
    log.warn({ error, session_id: id }, 'could not record the last use of a session')
  }
}

/** The actor of what a member does: the name, and the e-mail address redacted. */
export function actorOf(user: Pick<sessions.ActiveSession, 'user_id' | 'email' | 'display_name'>): Actor {
  const redacted_email = redactEmail(user.email)
  return { kind: 'user', user_id: user.user_id, label: user.display_name ?? redacted_email, redacted_email }
}

function seenSince(now: Date): Date {
  return new Date(now.getTime() - SESSION_IDLE_MS)
}

/** What a session is started with. `expires_at`: when an earlier session would have ended that this one continues. */
type SessionStart = sessions.Membership & {
  readonly by: SignedInBy
  readonly is_confined: boolean
  readonly user_agent: string | null
  readonly expires_at?: Date
}

const USER_AGENT_MAX_CHARS = 256

/** Inserts a session with a secret of its own, in the caller's system transaction. Throws `not_signed_in` if the member was just removed. */
export async function insertSession(
  deps: Pick<BaseDeps, 'clock' | 'uuids' | 'random'>,
  tx: Queryable,
  { org_id, user_id, by, is_confined, user_agent, expires_at }: SessionStart,
): Promise<NewSession> {
  if (!(await sessions.holdMembership(tx, { org_id, user_id }))) throw new Problem('not_signed_in')
  const token = formatSessionToken(deps.random.bytes(32))
  const now = deps.clock.now()
  const end = expires_at ?? new Date(now.getTime() + SESSION_MAX_MS)
  const session = {
    id: asId<SessionId>(deps.uuids.next()),
    org_id,
    user_id,
    secretSha256: hashSecret(token),
    signed_in_by: by,
    is_confined,
    user_agent: user_agent?.slice(0, USER_AGENT_MAX_CHARS) ?? null,
    now,
    expires_at: end,
  }
  await sessions.insert(tx, session, SESSIONS_OF_MEMBER_MAX)
  return { token, lastsMs: end.getTime() - now.getTime() }
}

/** Signs a member in: inserts a session and records the event, in the caller's system transaction. */
export async function startSession(
  deps: Pick<BaseDeps, 'clock' | 'uuids' | 'random'>,
  tx: Queryable,
  member: members.MemberRow & Omit<SessionStart, 'user_id' | 'expires_at'>,
): Promise<NewSession> {
  const { org_id, user_id, id, role, by } = member
  const acting = { org_id, actor: actorOf(member) }
  const payload = { member_id: id, user_id, role, by }
  await recordEvent(deps, tx, { ...acting, event_type: 'member_signed_in', payload })
  return insertSession(deps, tx, member)
}

/** The maximum number of organizations of a person that a session shows. */
const ORGS_MAX = 100

/** The organizations that a session may act in: those of its user, or only its own. */
export async function orgsOfSession(
  deps: Pick<BaseDeps, 'db'>,
  { session: { user_id, org_id, is_confined } }: SignedIn,
): Promise<readonly members.OrgOfUser[]> {
  const orgs = await deps.db.asSystem((q) => members.orgsOf(q, user_id, ORGS_MAX))
  return is_confined ? orgs.filter(({ id }) => id === org_id) : orgs
}

/**
 * Goes on in another organization of the user: by a new session with the same end, in place of the old one. Throws
 * `org_not_found` for an organization that this session may not act in.
 */
export async function switchOrg(
  deps: WriteDeps & Pick<BaseDeps, 'random'>,
  signedIn: SignedIn,
  { org_id, user_agent }: { readonly org_id: OrgId; readonly user_agent: string | null },
): Promise<NewSession> {
  const { user_id, is_confined, signed_in_by: by, expires_at, id } = signedIn.session
  const orgs = await orgsOfSession(deps, signedIn)
  if (!orgs.some((org) => org.id === org_id)) throw new Problem('org_not_found')
  return deps.db.transaction('system', async (tx) => {
    if (!(await sessions.remove(tx, { user_id, org_id: null }, id))) throw new Problem('not_signed_in')
    await notifyAtCommit(tx, [sessionTopic(id)])
    return insertSession(deps, tx, { org_id, user_id, by, is_confined, user_agent, expires_at })
  })
}

/** A session as its user sees it. */
export type ListedSession = sessions.SessionRow & { readonly is_current: boolean }

/** The sessions of the user, the latest first. A confined session shows those of its own organization. */
export async function listSessions(
  deps: Pick<BaseDeps, 'db' | 'clock'>,
  { session }: SignedIn,
): Promise<readonly ListedSession[]> {
  const now = deps.clock.now()
  const bounds = { now, seenSince: seenSince(now), limit: SESSIONS_OF_MEMBER_MAX * ORGS_MAX }
  const rows = await deps.db.asSystem((q) => sessions.listOfUser(q, reachOf(session), bounds))
  return rows.map((row) => ({ ...row, is_current: row.id === session.id }))
}

/** Ends a session of the user, and what it has open. Throws `session_not_found`. */
export async function endSession(deps: Pick<BaseDeps, 'db'>, { session }: SignedIn, id: SessionId): Promise<void> {
  await deps.db.transaction('system', async (tx) => {
    if (!(await sessions.remove(tx, reachOf(session), id))) throw new Problem('session_not_found')
    await notifyAtCommit(tx, [sessionTopic(id)])
  })
}

/** Ends the session with this secret, and what it has open. May be repeated. */
export async function signOut(deps: Pick<BaseDeps, 'db'>, token: string): Promise<void> {
  await deps.db.transaction('system', async (tx) => {
    const id = await sessions.removeByHash(tx, hashSecret(token))
    if (id !== null) await notifyAtCommit(tx, [sessionTopic(id)])
  })
}

function reachOf({ user_id, org_id, is_confined }: sessions.ActiveSession): sessions.OfUser {
  return { user_id, org_id: is_confined ? org_id : null }
}
