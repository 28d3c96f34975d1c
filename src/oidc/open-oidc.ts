import * as oidc from 'openid-client'
import type { OidcPerson, OidcProvider } from '../control/sign-in/oidc.ts'
import { Problem } from '../domain/problem.ts'
import type { Log } from '../lib/log.ts'
import type { Clock } from '../lib/clock.ts'

export type OidcOptions = {
  /** The issuer, by https, or by http on this machine. */
  readonly issuer: string
  readonly clientId: string
  /** Null: a public client, which PKCE protects alone. */
  readonly clientSecret: string | null
  readonly label: string | null
}

/** The limit of each request to the provider, in seconds. */
const TIMEOUT_SECS = 10
/** How long the provider's own description is used, in milliseconds. */
const DESCRIPTION_KEPT_MS = 3_600_000
/** How long a failed look-up of it is remembered, in milliseconds, so that clicks don't multiply requests. */
const FAILURE_KEPT_MS = 2_000

/**
 * Opens the provider of an issuer, by the authorization code flow with PKCE, state and nonce (OpenID Connect Core 1.0, section 3.1; RFC
 * 7636). Nothing is asked of it before the first sign-in, so the server starts without it.
 */
export function openOidc(
  { issuer, clientId, clientSecret, label }: OidcOptions,
  { clock, log }: { readonly clock: Pick<Clock, 'monotonicMs'>; readonly log: Log },
): OidcProvider {
  const server = new URL(issuer)
  let known: { readonly description: Promise<oidc.Configuration>; untilMs: number } | null = null

  async function describe(): Promise<oidc.Configuration> {
    if (known !== null && clock.monotonicMs() < known.untilMs) return known.description
    const description = oidc.discovery(
      server,
      clientId,
      undefined,
      clientSecret === null ? oidc.None() : oidc.ClientSecretBasic(clientSecret),
      {
        timeout: TIMEOUT_SECS,
        execute: [
          oidc.enableNonRepudiationChecks,
          ...(server.protocol === 'http:' ? [oidc.allowInsecureRequests] : []),
        ],
      },
    )
    const entry = { description, untilMs: clock.monotonicMs() + DESCRIPTION_KEPT_MS }
    known = entry
    description.catch(() => (entry.untilMs = clock.monotonicMs() + FAILURE_KEPT_MS))
    return description
  }

  /** Does a step with the provider. Logs why it failed, once and without what the provider or the browser sent. */
  async function attempt<Result>(step: (description: oidc.Configuration) => Promise<Result>): Promise<Result> {
    try {
      return await step(await describe())
    } catch (error) {
      const problem = problemOf(error)
      log.warn({ code: problem.code, reason: describeError(error) }, 'a sign-in at the provider failed')
      throw problem
    }
  }

  return {
    label: label ?? server.host,
    begin: (redirect_uri) =>
      attempt(async (description) => {
        const pending = {
          state: oidc.randomState(),
          nonce: oidc.randomNonce(),
          code_verifier: oidc.randomPKCECodeVerifier(),
          redirect_uri,
        }
        const url = oidc.buildAuthorizationUrl(description, {
          redirect_uri,
          scope: 'openid email',
          state: pending.state,
          nonce: pending.nonce,
          code_challenge: await oidc.calculatePKCECodeChallenge(pending.code_verifier),
          code_challenge_method: 'S256',
        })
        return { url: url.href, pending }
      }),
    finish: (query, { state, nonce, code_verifier, redirect_uri }) =>
      attempt(async (description) => {
        const tokens = await oidc.authorizationCodeGrant(description, new URL(`${redirect_uri}?${query}`), {
          expectedState: state,
          expectedNonce: nonce,
          pkceCodeVerifier: code_verifier,
          idTokenExpected: true,
        })
        return readPerson(description, tokens)
      }),
  }
}

/** Reads who the person is. Many providers have the e-mail address in the ID token, others only at their UserInfo endpoint. */
async function readPerson(
  description: oidc.Configuration,
  tokens: Awaited<ReturnType<typeof oidc.authorizationCodeGrant>>,
): Promise<OidcPerson> {
  const claims = tokens.claims()
  if (claims === undefined) throw new Problem('oidc_failed')
  const isAsked = claims['email'] === undefined && description.serverMetadata().userinfo_endpoint !== undefined
  const told = isAsked ? await oidc.fetchUserInfo(description, tokens.access_token, claims.sub) : claims
  const { email, email_verified } = told
  return {
    issuer: claims.iss,
    subject: claims.sub,
    email: typeof email === 'string' ? email : null,
    isEmailVerified: email_verified === true,
  }
}

/** Statuses from here on are failures of the provider itself. */
const FIRST_SERVER_FAILURE = 500

function problemOf(error: unknown): Problem {
  if (error instanceof Problem) return error
  const cause = error
  if (error instanceof oidc.AuthorizationResponseError) return new Problem('oidc_denied', { cause })
  return new Problem(isUnavailable(error) ? 'oidc_unavailable' : 'oidc_failed', { cause })
}

function isUnavailable(error: unknown): boolean {
  if (error instanceof TypeError) return true // `fetch` rejects with it if nothing answers
  if (!(error instanceof oidc.ClientError)) return false
  const status = error.cause instanceof Response ? error.cause.status : 0
  return error.code === 'OAUTH_TIMEOUT' || status >= FIRST_SERVER_FAILURE
}

function describeError(error: unknown): string {
  const [code, cause] = error instanceof Error ? [Object(error).code, error.cause] : []
  const under = cause instanceof Error ? `: ${cause.message}` : ''
  return `${error instanceof Error ? error.message : 'unknown'}${code === undefined ? '' : ` (${String(code)})`}${under}`
}
