import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { OIDC_REFUSALS } from '../../contract/sign-in/sign-in.ts'
import {
  OIDC_PENDING_MS,
  openPending,
  sealPending,
  signInByOidc,
  type OidcProvider,
} from '../../control/sign-in/oidc.ts'
import type { NewSession } from '../../control/sign-in/sessions.ts'
import { Problem } from '../../domain/problem.ts'
import { rateLimitAddress } from '../../lib/rate-limit-address.ts'
import { isSecureRequest } from '../requests/client-address.ts'
import { cookieIn, setCookie } from '../requests/session-cookie.ts'
import type { SignInDeps } from './sign-in-routes.ts'

type Exchange = { readonly request: FastifyRequest; readonly reply: FastifyReply }

type OidcRouteDeps = SignInDeps & {
  readonly oidc: OidcProvider
  readonly replaceSession: (exchange: Exchange, session: NewSession) => Promise<void>
}

const CALLBACK_PATH = '/auth/oidc/callback'

/**
 * The two addresses that a browser opens to sign in at the provider: the way there and the way back. What ties them is in a sealed
 * cookie, so any server process may take the way back. A browser is shown a refusal on the page to sign in; a program gets the problem.
 */
export function addOidcRoutes(
  app: FastifyInstance,
  { call, clients, limits, oidc, replaceSession }: OidcRouteDeps,
): void {
  const cookieName = (isSecure: boolean): string => (isSecure ? '__Host-sandyard_oidc' : 'sandyard_oidc')
  const keep = ({ request, reply }: Exchange, value: string, lastsMs: number): void => {
    const isSecure = isSecureRequest(clients, request.raw)
    reply.header('set-cookie', setCookie(cookieName(isSecure), value, { isSecure, path: '/', lastsMs }))
  }

  app.get('/auth/oidc', (request, reply) =>
    showRefusals({ request, reply }, async () => {
      const { url, pending } = await oidc.begin(`${originOf(request)}${CALLBACK_PATH}`)
      keep({ request, reply }, call(sealPending, pending), OIDC_PENDING_MS)
      return reply.redirect(url, 303)
    }),
  )

  app.get(CALLBACK_PATH, (request, reply) =>
    showRefusals({ request, reply }, async () => {
      const address = rateLimitAddress(clients.of(request.raw))
      limits?.rates.checkFailedAuthentications(address)
      const kept = cookieIn(request.headers.cookie, cookieName(isSecureRequest(clients, request.raw)))
      keep({ request, reply }, '', 0)
      try {
        const person = await oidc.finish(queryOf(request), call(openPending, kept))
        const user_agent = request.headers['user-agent'] ?? null
        await replaceSession({ request, reply }, await call(signInByOidc, { person, user_agent }))
      } catch (error) {
        if (error instanceof Problem && error.code !== 'oidc_unavailable')
          limits?.rates.countFailedAuthentication(address)
        throw error
      }
      return reply.redirect('/', 303)
    }),
  )

  /** The origin by which the browser knows this server. The provider accepts only those that the operator registered there. */
  function originOf({ raw }: FastifyRequest): string {
    return `${isSecureRequest(clients, raw) ? 'https' : 'http'}://${raw.headers.host ?? ''}`
  }
}

function queryOf({ url }: FastifyRequest): string {
  const at = url.indexOf('?')
  return at === -1 ? '' : url.slice(at + 1)
}

async function showRefusals({ request, reply }: Exchange, serve: () => Promise<FastifyReply>): Promise<FastifyReply> {
  try {
    return await serve()
  } catch (error) {
    const isForBrowser = request.headers.accept?.includes('text/html') === true
    const code = error instanceof Problem ? OIDC_REFUSALS.find((one) => one === error.code) : undefined
    if (!isForBrowser || code === undefined) throw error
    return reply.redirect(`/sign-in#error=${code}`, 303)
  }
}
