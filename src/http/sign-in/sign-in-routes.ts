import type { FastifyInstance, FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify'
import {
  LinkInput,
  OrgInput,
  SessionIdParams,
  type ListedSessionReply,
  type SessionReply,
  type SignInOptionsReply,
} from '../../contract/sign-in/sign-in.ts'
import { getOrg } from '../../control/orgs/orgs.ts'
import type { OidcProvider } from '../../control/sign-in/oidc.ts'
import { signInByLink } from '../../control/sign-in/links.ts'
import {
  endSession,
  listSessions,
  orgsOfSession,
  signOut,
  switchOrg,
  type ListedSession,
  type NewSession,
  type SignedIn,
} from '../../control/sign-in/sessions.ts'
import { asId, type OrgId, type SessionId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { csrfTokenOf } from '../../domain/sign-in/session.ts'
import { rateLimitAddress } from '../../lib/rate-limit-address.ts'
import { requireSession, senderOf, type AuthenticateDeps } from '../requests/authenticate-request.ts'
import { isSecureRequest, type ClientAddresses } from '../requests/client-address.ts'
import { requireSameOrigin } from '../requests/request-origin.ts'
import { makeSchemaCompiler } from '../requests/schemas/schema-compiler.ts'
import { addOidcRoutes } from './oidc-routes.ts'
import { endedSessionCookie, sessionCookie, sessionTokenIn } from '../requests/session-cookie.ts'

/** The ways to sign in beside a link. */
export type SignInOptions = { readonly oidc: OidcProvider | null }

export type SignInDeps = AuthenticateDeps & { readonly clients: ClientAddresses }

/** The largest body of a request to these routes, in bytes. */
const BODY_LIMIT_BYTES = 4 * 1024

/**
 * The routes by which members sign in and out in a browser, and see their sessions. Every reply is for this browser alone, so none
 * is stored. A change comes from a page of this server: `requireSameOrigin` and the CSRF token of the session show it.
 */
export function makeSignInRoutes(deps: SignInDeps, options: SignInOptions): FastifyPluginAsync {
  return (app) => {
    app.addHook('onRequest', async (_request, reply) => {
      reply.header('cache-control', 'no-store')
    })
    addSignIn(app, deps, options)
    addSession(app, deps)
    return Promise.resolve()
  }
}

function addSignIn(app: FastifyInstance, deps: SignInDeps, { oidc }: SignInOptions): void {
  const { call, clients } = deps
  const parseLink = makeSchemaCompiler()(LinkInput, 'body')
  app.get('/auth/options', (): SignInOptionsReply => ({ oidc: oidc === null ? null : { label: oidc.label } }))
  if (oidc !== null) {
    const replace = (exchange: Exchange, session: NewSession) => replaceSession(deps, exchange, session)
    addOidcRoutes(app, { ...deps, oidc, replaceSession: replace })
  }
  app.post('/auth/link', {
    bodyLimit: BODY_LIMIT_BYTES,
    onRequest: async ({ raw }) => {
      requireSameOrigin(raw.headers, { isChange: true }) // else another page could sign this browser in as its own member
      deps.limits?.rates.checkFailedAuthentications(rateLimitAddress(clients.of(raw)))
    },
    handler: async (request, reply) => {
      const { token } = parseLink(request.body)
      try {
        const user_agent = request.headers['user-agent'] ?? null
        await replaceSession(deps, { request, reply }, await call(signInByLink, { token, user_agent }))
      } catch (error) {
        if (error instanceof Problem && error.code === 'invalid_sign_in_link')
          deps.limits?.rates.countFailedAuthentication(rateLimitAddress(clients.of(request.raw)))
        throw error
      }
      return { message: 'signed in' }
    },
  })
}

type Exchange = { readonly request: FastifyRequest; readonly reply: FastifyReply }

/** Gives the browser a new session, and ends the one that it had. */
async function replaceSession(
  { call, clients }: SignInDeps,
  { request: { raw }, reply }: Exchange,
  { token, lastsMs }: NewSession,
): Promise<void> {
  const isSecure = isSecureRequest(clients, raw)
  const earlier = sessionTokenIn(raw.headers.cookie, isSecure)
  if (earlier !== null) await call(signOut, earlier)
  reply.header('set-cookie', sessionCookie(token, { isSecure, lastsMs })) // Fastify adds it to others that are set
}

function addSession(app: FastifyInstance, deps: SignInDeps): void {
  const { call, clients } = deps
  const compile = makeSchemaCompiler()
  const [parseOrg, parseId] = [compile(OrgInput, 'body'), compile(SessionIdParams, 'path')]
  const signedIn = new WeakMap<FastifyRequest, SignedIn & { readonly token: string }>()
  /** Requires a session before the body is read. */
  const onRequest = async (request: FastifyRequest): Promise<void> => {
    signedIn.set(request, await requireSession(deps, senderOf(clients, request.raw)))
  }
  const sessionOf = (request: FastifyRequest): SignedIn & { readonly token: string } => {
    const found = signedIn.get(request)
    if (found === undefined) throw new Error('a request without a session reached its handler')
    return found
  }
  const withSession = { onRequest, bodyLimit: BODY_LIMIT_BYTES }

  app.get('/auth/session', withSession, async (request): Promise<SessionReply> => {
    const current = sessionOf(request)
    const [org, orgs] = await Promise.all([call(getOrg, current.caller), call(orgsOfSession, current)])
    return renderSession(current, org, orgs)
  })
  app.post('/auth/org', withSession, async (request, reply) => {
    const org_id = asId<OrgId>(parseOrg(request.body).org_id.toLowerCase())
    const user_agent = request.headers['user-agent'] ?? null
    await replaceSession(deps, { request, reply }, await call(switchOrg, sessionOf(request), { org_id, user_agent }))
    return { message: 'organization chosen' }
  })
  app.post('/auth/sign-out', withSession, async (request, reply) => {
    await call(signOut, sessionOf(request).token)
    reply.header('set-cookie', endedSessionCookie(isSecureRequest(clients, request.raw)))
    return { message: 'signed out' }
  })
  app.get('/auth/sessions', withSession, async (request) => ({
    data: (await call(listSessions, sessionOf(request))).map(renderListed),
  }))
  app.delete('/auth/sessions/:session_id', withSession, async (request) => {
    const { session_id } = parseId(request.params)
    await call(endSession, sessionOf(request), asId<SessionId>(session_id.toLowerCase()))
    return { message: 'session ended' }
  })
}

type OrgOf = Pick<SessionReply['org'], 'id' | 'name' | 'slug'>

function renderSession(
  { caller, session, token }: SignedIn & { readonly token: string },
  org: OrgOf,
  orgs: readonly SessionReply['orgs'][number][],
): SessionReply {
  if (caller.actor.kind !== 'user') throw new Error('the actor of a session is not its user')
  const { user_id, label, redacted_email } = caller.actor
  return {
    user: { id: user_id, label, redacted_email },
    org: { id: org.id, name: org.name, slug: org.slug },
    role: caller.role,
    orgs: orgs.map(({ id, name, slug, role }) => ({ id, name, slug, role })),
    csrf_token: csrfTokenOf(token),
    is_operator: caller.isOperator === true,
    expires_at: session.expires_at.toISOString(),
  }
}

function renderListed({ created_at, last_seen_at, expires_at, ...session }: ListedSession): ListedSessionReply {
  const instants = [created_at, last_seen_at, expires_at].map((at) => at.toISOString())
  const [created = '', seen = '', expires = ''] = instants
  return { ...session, created_at: created, last_seen_at: seen, expires_at: expires }
}
