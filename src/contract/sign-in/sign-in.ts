import { Type, type Static } from 'typebox'
import { DateTime, nullable, requestObject, stringEnum, Uuid } from '../common.ts'
import type { ProblemCode } from '../../domain/problem.ts'
import { ROLES } from '../../domain/orgs/caller.ts'

/**
 * What the dashboard and the server say to each other about signing in. These routes are for browsers, so they are no part of the
 * public API.
 */

/** The header in which a change proves that it comes from a page of this server. Node and browsers write it in lower case. */
export const CSRF_HEADER = 'x-sandyard-csrf'

export const LinkInput = requestObject({ token: Type.String() })
export const OrgInput = requestObject({ org_id: Uuid })
export const SessionIdParams = requestObject({ session_id: Uuid })

const Org = { id: Uuid, name: Type.String(), slug: Type.String() }

/** Who is signed in, and where. */
const SessionReply = Type.Object({
  user: Type.Object({ id: Uuid, label: Type.String(), redacted_email: Type.String() }),
  org: Type.Object(Org),
  role: stringEnum(ROLES),
  /** The organizations that this session may act in. */
  orgs: Type.Array(Type.Object({ ...Org, role: stringEnum(ROLES) })),
  csrf_token: Type.String(),
  /** Whether the member may use the routes for operators. */
  is_operator: Type.Boolean(),
  expires_at: DateTime,
})
export type SessionReply = Static<typeof SessionReply>

/** The ways to sign in beside a link. */
const SignInOptionsReply = Type.Object({ oidc: nullable(Type.Object({ label: Type.String() })) })
export type SignInOptionsReply = Static<typeof SignInOptionsReply>

/** Why signing in at the provider failed, as the page shows it: `/sign-in#error=…`. */
export const OIDC_REFUSALS = [
  'oidc_failed',
  'oidc_denied',
  'oidc_no_member',
  'oidc_email_unverified',
  'oidc_other_identity',
  'oidc_unavailable',
] as const satisfies readonly ProblemCode[]
export type OidcRefusal = (typeof OIDC_REFUSALS)[number]

const ListedSessionReply = Type.Object({
  id: Uuid,
  org_id: Uuid,
  org_name: Type.String(),
  signed_in_by: stringEnum(['link', 'oidc']),
  user_agent: nullable(Type.String()),
  created_at: DateTime,
  /** To ten minutes. */
  last_seen_at: DateTime,
  expires_at: DateTime,
  is_current: Type.Boolean(),
})
export type ListedSessionReply = Static<typeof ListedSessionReply>
