import { timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { authenticate } from '../../control/orgs/authenticate.ts'
import { authenticateSession, type SignedIn } from '../../control/sign-in/sessions.ts'
import type { Access } from '../../contract/operation.ts'
import { CSRF_HEADER } from '../../contract/sign-in/sign-in.ts'
import { includesScope, leastRoleOf, type Caller } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import { refusalProblem } from '../../domain/refusal.ts'
import { csrfTokenOf } from '../../domain/sign-in/session.ts'
import { rateLimitAddress } from '../../lib/rate-limit-address.ts'
import type { CallUseCase } from './call-use-case.ts'
import { isSecureRequest, type ClientAddresses } from './client-address.ts'
import type { RequestLimits } from './request-limits.ts'
import { requireSameOrigin } from './request-origin.ts'
import { sessionTokenIn } from './session-cookie.ts'

/** The syntax of RFC 6750, section 2.1. The limit of 512 is far above the length of a key. */
const BEARER = /^bearer +([A-Za-z0-9._~+/=-]{1,512}) *$/i

export type AuthenticateDeps = {
  readonly call: CallUseCase
  /** Whether the cookie of a session is accepted in place of a key. Absent: no. */
  readonly acceptsSessions?: boolean
  /** Absent: failed authentications are not limited. */
  readonly limits?: Pick<RequestLimits, 'rates'>
}

/**
 * How a request with the cookie of a session proves that a page of this server sent it. `read`: it changes nothing, so the browser may
 * say nothing about its origin. `token`: by its origin and the CSRF token. `origin`: by its origin, as WebSockets do.
 */
type OriginProof = 'read' | 'token' | 'origin'

/** The client's address and the headers of a request that say who sends it. */
export type Sender = {
  readonly headers: IncomingHttpHeaders
  readonly address: string | undefined
  readonly isSecure: boolean
  readonly proof: OriginProof
}

/** Reads the sender of an HTTP request. */
export function senderOf(clients: ClientAddresses, raw: IncomingMessage): Sender {
  const proof = raw.method === 'GET' || raw.method === 'HEAD' ? 'read' : 'token'
  return { headers: raw.headers, address: clients.of(raw), isSecure: isSecureRequest(clients, raw), proof }
}

/**
 * Authenticates a request by its key or its session and returns its caller. Throws `invalid_api_key` if both are missing or
 * unknown, and `invalid_request` if both are there. Throws `rate_limited` if the key is not cached and the sender's address had
 * too many failed authentications. Such a key is not looked up in the database, so guessing keys doesn't slow down other callers.
 */
export async function authenticateRequest(deps: AuthenticateDeps, sender: Sender): Promise<Caller> {
  const { authorization, cookie } = sender.headers
  const token = deps.acceptsSessions === true ? sessionTokenIn(cookie, sender.isSecure) : null
  if (token !== null && authorization !== undefined)
    throw refusalProblem({
      code: 'invalid_request',
      field: 'authorization',
      seen: 'a key and the cookie of a session',
      accepted: 'one of the two',
    })
  const caller = token === null ? await findKey(deps, sender) : (await findSession(deps, sender, token))?.caller
  if (caller !== null && caller !== undefined) return caller
  countFailure(deps, sender)
  throw new Problem('invalid_api_key')
}

/**
 * The member of the session whose cookie a request has, and the session's secret. Throws `not_signed_in`, and `forbidden` if
 * the request may be that of another origin's page.
 */
export async function requireSession(
  deps: AuthenticateDeps,
  sender: Sender,
): Promise<SignedIn & { readonly token: string }> {
  const token = sessionTokenIn(sender.headers.cookie, sender.isSecure)
  if (token === null) throw new Problem('not_signed_in')
  const signedIn = await findSession(deps, sender, token)
  if (signedIn !== null) return { ...signedIn, token }
  countFailure(deps, sender)
  throw new Problem('not_signed_in')
}

async function findKey(deps: AuthenticateDeps, sender: Sender): Promise<Caller | null> {
  const key = BEARER.exec(sender.headers.authorization ?? '')?.[1]
  return key === undefined ? null : deps.call(authenticate, key, () => checkFailures(deps, sender))
}

async function findSession(deps: AuthenticateDeps, sender: Sender, token: string): Promise<SignedIn | null> {
  requireSameOrigin(sender.headers, { isChange: sender.proof !== 'read' })
  const signedIn = await deps.call(authenticateSession, token, () => checkFailures(deps, sender))
  if (signedIn !== null && sender.proof === 'token') requireCsrfToken(sender.headers, token)
  return signedIn
}

function requireCsrfToken(headers: IncomingHttpHeaders, token: string): void {
  const [given, expected] = [headers[CSRF_HEADER], csrfTokenOf(token)].map((text) => Buffer.from(String(text ?? '')))
  if (given !== undefined && expected !== undefined && given.length === expected.length && timingSafeEqual(given, expected)) return // prettier-ignore
  throw new Problem('forbidden', {
    message: `forbidden: a change by a session needs the header ${CSRF_HEADER}`,
    details: {
      field: CSRF_HEADER,
      seen: headers[CSRF_HEADER] === undefined ? 'nothing' : 'another value',
      accepted: 'the csrf_token of GET /auth/session',
    },
  })
}

function checkFailures({ limits }: AuthenticateDeps, { address }: Sender): void {
  limits?.rates.checkFailedAuthentications(rateLimitAddress(address))
}

function countFailure({ limits }: AuthenticateDeps, { address }: Sender): void {
  limits?.rates.countFailedAuthentication(rateLimitAddress(address))
}

/** Throws `forbidden` if the caller's key or role lacks what the operation needs. */
export function requireScope(caller: Caller, needed: Access): void {
  if (!mayUse(caller, needed))
    throw caller.actor.kind === 'user' ? roleRefusal(caller, needed) : keyRefusal(caller, needed)
}

function mayUse({ scope, isOperator = false }: Caller, needed: Access): boolean {
  if (needed === 'none') return true
  return needed === 'operator' ? isOperator : includesScope(scope, needed)
}

function keyRefusal({ scope }: Caller, needed: Access): Problem {
  const reason = needed === 'operator' ? '; only the sandyard command makes such keys' : ''
  return new Problem('forbidden', {
    message: `forbidden: this needs an API key with the scope ${needed}; yours has ${scope}${reason}`,
    details: { field: 'scope', seen: scope, accepted: needed },
  })
}

function roleRefusal({ role }: Caller, needed: Access): Problem {
  const accepted = needed === 'none' || needed === 'operator' ? needed : leastRoleOf(needed)
  const message =
    accepted === 'operator'
      ? 'forbidden: this is for operators of the installation; `sandyard member operator` makes one'
      : `forbidden: this needs the role ${accepted}; yours is ${role}`
  return new Problem('forbidden', { message, details: { field: 'role', seen: role, accepted } })
}
