import { Type } from 'typebox'
import { Value } from 'typebox/value'
import type { GuardedHttp } from '../../../lib/outbound/guarded-http.ts'
import { StartError } from '../../start-error.ts'
import { readBlob } from '../blob.ts'
import type { RegistryAuth } from '../image.ts'
import {
  type RegistryReply,
  type RegistryTimeouts,
  TransientRegistryError,
  sendToRegistry,
} from './registry-transport.ts'

/** A registry's `WWW-Authenticate` challenge (RFC 9110 11.6.1; OCI distribution, token authentication). */
type Challenge =
  { readonly scheme: 'basic' } | { readonly scheme: 'bearer'; readonly realm: string; readonly service: string | null }

type TokenRequest = {
  readonly http: GuardedHttp
  /** The registry's host, for messages. */
  readonly registry: string
  /** Where the challenge came from. The token service must not be further inside. */
  readonly challengedFrom: RegistryReply['reach']
  readonly repository: string
  readonly auth: RegistryAuth | null
  readonly timeouts: RegistryTimeouts
  readonly maxBytes: number
  readonly signal: AbortSignal
}

/**
 * Parses a challenge. Null when it has no known scheme. If the header offers both schemes, a token is preferred,
 * because basic authentication sends the password with each request.
 */
export function parseChallenge(header: string): Challenge | null {
  const bearer = /(?:^|[\s,])bearer\s+(.*)$/i.exec(header)?.[1]
  if (bearer !== undefined) {
    const parameters = new Map(
      // without \b, each letter of a long word would begin another attempt
      [...bearer.matchAll(/\b(\w+)="([^"]*)"/g)].map(([, name, value]) => [name?.toLowerCase(), value]),
    )
    const realm = parameters.get('realm')
    return realm === undefined ? null : { scheme: 'bearer', realm, service: parameters.get('service') ?? null }
  }
  return /(?:^|[\s,])basic(?:\s|$)/i.test(header) ? { scheme: 'basic' } : null
}

/**
 * Returns the Authorization header that answers a challenge. Null when the challenge requires a password and the caller
 * has none. Throws when the token service refuses. The requested scope is always to pull this one repository, even if
 * the registry suggests another scope.
 */
export async function answerChallenge(challenge: Challenge, request: TokenRequest): Promise<string | null> {
  if (challenge.scheme === 'basic') return request.auth === null ? null : basic(request.auth)
  return `Bearer ${await fetchToken(challenge, request)}`
}

const TokenReply = Type.Object({ token: Type.Optional(Type.String()), access_token: Type.Optional(Type.String()) })

async function fetchToken(
  challenge: Challenge & { readonly scheme: 'bearer' },
  request: TokenRequest,
): Promise<string> {
  const { http, registry, challengedFrom, repository, auth, timeouts, maxBytes, signal } = request
  const url = URL.parse(challenge.realm)
  if (url === null || !/^https?:$/.test(url.protocol))
    throw new StartError('registry', `registry ${registry} names a token service that is not a URL`)
  if (challenge.service !== null) url.searchParams.set('service', challenge.service)
  url.searchParams.set('scope', `repository:${repository}:pull`)
  const headers = auth === null ? {} : { authorization: basic(auth) }
  const linkedFrom = challengedFrom
  const reply = await sendToRegistry({ http, registry, url, method: 'GET', headers, timeouts, signal, linkedFrom })
  if (reply.status !== 200) {
    reply.discard()
    if (reply.status >= 500)
      throw new TransientRegistryError(
        'registry',
        `the token service of registry ${registry} answered ${String(reply.status)}`,
      )
    throw new StartError(
      'registry',
      auth === null
        ? `registry ${registry} does not allow anonymous access to ${repository}; add a credential for it`
        : `registry ${registry} refused the credential for ${repository}; check its user name and password`,
    )
  }
  const bytes = await readBlob(reply.body, { digest: null, sizeBytes: null, maxBytes })
  const token = readToken(bytes)
  if (token === null) throw new StartError('registry', `the token service of registry ${registry} sent no token`)
  return token
}

// No error may quote the reply, because it contains the token.
function readToken(bytes: Buffer): string | null {
  try {
    const value: unknown = JSON.parse(bytes.toString('utf8'))
    const token = Value.Check(TokenReply, value) ? (value.token ?? value.access_token) : undefined
    return token !== undefined && /^[\x21-\x7e]+$/.test(token) ? token : null
  } catch (error) {
    if (error instanceof SyntaxError) return null
    throw error
  }
}

function basic({ username, password }: RegistryAuth): string {
  return `Basic ${Buffer.from(`${username}:${password}`, 'utf8').toString('base64')}`
}
