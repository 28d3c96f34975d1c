/** Signing in at a provider of OpenID Connect, which says who a person is. Whether they may enter is decided here. */
import { parseEmail } from '../../domain/orgs/email.ts'
import type { UserId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { UnsealError } from '../../lib/seal.ts'
import * as members from '../../store/orgs/members.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as identities from '../../store/sign-in/identities.ts'
import type { BaseDeps } from '../deps.ts'
import { startSession, type NewSession } from './sessions.ts'

/** What the browser keeps, sealed, while a person signs in at the provider. It ties the answer to this browser. */
export type OidcPending = {
  readonly state: string
  readonly nonce: string
  readonly code_verifier: string
  readonly redirect_uri: string
}

/** A person as the provider knows them. */
export type OidcPerson = identities.Identity & { readonly email: string | null; readonly isEmailVerified: boolean }

/** A provider of OpenID Connect. Both functions throw `oidc_unavailable` if it can't be reached in time. */
export type OidcProvider = {
  /** What the button calls it. */
  readonly label: string
  /** Begins a sign-in. The browser goes to `url` and comes back to `redirectUri`. */
  begin(redirectUri: string): Promise<{ readonly url: string; readonly pending: OidcPending }>
  /**
   * Ends a sign-in by the query with which the browser came back. Throws `oidc_denied` if the provider refused, and `oidc_failed` if
   * the answer is not that to `pending`.
   */
  finish(query: string, pending: OidcPending): Promise<OidcPerson>
}

/** How long a person may take at the provider, in milliseconds. */
export const OIDC_PENDING_MS = 10 * 60_000
const CONTEXT = 'oidc-pending'

type SealDeps = Pick<BaseDeps, 'seal' | 'clock'>

/** Seals what a browser keeps. Every server process can open it. */
export function sealPending({ seal, clock }: SealDeps, pending: OidcPending): string {
  const until = clock.now().getTime() + OIDC_PENDING_MS
  return seal.seal(JSON.stringify({ pending, until }), CONTEXT).toString('base64url')
}

/** Opens what a browser kept. Throws `oidc_failed` if it is missing, changed, or too old. */
export function openPending({ seal, clock }: SealDeps, sealed: string | null): OidcPending {
  try {
    const kept: { readonly pending: OidcPending; readonly until: number } = JSON.parse(
      seal.open(Buffer.from(sealed ?? '', 'base64url'), CONTEXT), // only this program seals for this context
    )
    if (clock.now().getTime() < kept.until) return kept.pending
  } catch (error) {
    if (!(error instanceof UnsealError)) throw error
  }
  throw new Problem('oidc_failed')
}

/**
 * Signs a person in, in the organization that they joined first. The first time, a verified e-mail address tells which member they are;
 * from then on the provider's own id of the person does. Throws `oidc_no_member`, `oidc_email_unverified` and
 * `oidc_other_identity`.
 */
export async function signInByOidc(
  deps: Pick<BaseDeps, 'db' | 'clock' | 'uuids' | 'random'>,
  { person, user_agent }: { readonly person: OidcPerson; readonly user_agent: string | null },
): Promise<NewSession> {
  return deps.db.transaction('system', async (tx) => {
    const user_id = (await identities.findUser(tx, person)) ?? (await bindIdentity(deps, tx, person))
    const [org] = await members.orgsOf(tx, user_id, 1)
    const member = org === undefined ? null : await members.find(tx, org.id, { user_id })
    if (org === undefined || member === null) throw new Problem('oidc_no_member')
    return startSession(deps, tx, { ...member, org_id: org.id, by: 'oidc', is_confined: false, user_agent })
  })
}

async function bindIdentity(
  { clock }: Pick<BaseDeps, 'clock'>,
  tx: Queryable,
  { issuer, subject, email, isEmailVerified }: OidcPerson,
): Promise<UserId> {
  if (!isEmailVerified) throw new Problem('oidc_email_unverified')
  const address = parseEmail(email ?? '')
  const user_id = address === null ? null : await members.findUser(tx, address)
  if (user_id === null) throw new Problem('oidc_no_member')
  // A provider may give the address of someone who left to another person, who must not become that member.
  if (!(await identities.insert(tx, { issuer, subject, user_id, now: clock.now() })))
    throw new Problem('oidc_other_identity')
  return user_id
}
