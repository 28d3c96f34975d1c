/**
 * Posts to URLs that strangers choose, many to the same hosts. Like `guarded-http.ts`, each address is judged as it is dialled: the
 * connection is made to the judged address and not to the name. Connections stay open for later posts to the same host. Redirects are
 * not followed, and of a reply only the beginning is read.
 */
import { Agent as HttpAgent, request as requestHttp, type ClientRequest, type IncomingMessage } from 'node:http'
import { Agent as HttpsAgent, request as requestHttps } from 'node:https'
import { isIP, type LookupFunction } from 'node:net'
import { callbackify } from 'node:util'
import { errorCodeOf, hasErrorCode } from '../error-code.ts'
import type { GuardedHttpDeps } from './guarded-http.ts'
import { joinSignals } from '../join-signals.ts'
import { openTunnel } from './proxy-tunnel.ts'
import { resolveBySystem } from './resolve-by-system.ts'

/** The limits of a post, in milliseconds and bytes. */
export type PostLimits = {
  /** To the connection, with the look-up of the name and the handshake. */
  readonly connectMs: number
  /** To the end of the reply. */
  readonly totalMs: number
  /** How much of the reply's body is returned. */
  readonly bodyBytes: number
}

export type Post = {
  readonly url: URL
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
  readonly signal: AbortSignal
}

/** A reply, with the beginning of its body. */
export type PostReply = {
  readonly status: number
  readonly body: Buffer
  /** The header `Retry-After` as it was sent. Null: there was none. */
  readonly retryAfter: string | null
}

/** A post without a reply. The message says why, and has no address that the name of the host leads to. */
export class PostFailed extends Error {}

export type GuardedPost = {
  /** Rejects with `PostFailed` without a reply, and with the signal's reason. The host may have got the post all the same. */
  send(post: Post): Promise<PostReply>
  /** Closes the open connections. */
  close(): void
}

type GuardedPostDeps = GuardedHttpDeps & { readonly limits: PostLimits }

/** How long an unused connection stays open. Many servers close theirs after 60 s or more. */
const UNUSED_MS = 30_000
/** How many unused connections stay open for each host, and in all. */
const UNUSED_PER_HOST = 16
const UNUSED_MAX = 512
/** A body up to this length is read to its end, so that the connection can be used again. */
const DRAIN_BYTES = 16_384

/** Makes the client. */
export function makeGuardedPost(deps: GuardedPostDeps): GuardedPost {
  const { judge, resolve = resolveBySystem, proxyFor = () => null, limits } = deps
  const kept = { keepAlive: true, maxFreeSockets: UNUSED_PER_HOST, timeout: UNUSED_MS, maxTotalSockets: Infinity }
  const [http, https] = [new HttpAgent(kept), new HttpsAgent(kept)]
  const unused = (): number =>
    [http, https].reduce((sum, { freeSockets }) => sum + Object.values(freeSockets).flat().length, 0)

  const allowedOf = (url: URL, addresses: readonly string[]): readonly string[] => {
    const allowed = addresses.filter((address) => judge({ url, address }) !== null)
    if (allowed.length === 0) throw new PostFailed(`${url.host}: ${NO_ADDRESS}`)
    return allowed
  }
  /** Looks a name up when a connection is made, and answers with what may be dialled. */
  const lookupFor = (url: URL): LookupFunction => {
    const find = callbackify(async (name: string) => allowedOf(url, await resolve(name)))
    return (name, { all }, callback) => {
      find(name, (error: NodeJS.ErrnoException | null, addresses: readonly string[] = []) => {
        const found = addresses.map((address) => ({ address, family: isIP(address) }))
        const [first] = found
        if (error !== null || all === true || first === undefined) callback(error, found)
        else callback(null, first.address, first.family)
      })
    }
  }

  async function attempt(
    post: Post,
    { signal, isFresh }: { signal: AbortSignal; isFresh: boolean },
  ): Promise<PostReply> {
    const { url, headers, body } = post
    const host = url.hostname.replace(/^\[(.*)\]$/, '$1')
    const proxy = proxyFor(url)
    if (isIP(host) !== 0) allowedOf(url, [host])
    // The proxy connects, but a name whose addresses are all closed here is refused. It may be unknown here.
    else if (proxy !== null) await resolve(host).then((found) => allowedOf(url, found), () => [host]) // prettier-ignore
    const tunnel = proxy === null ? null : await openTunnel(proxy, url, signal)
    const isTls = url.protocol === 'https:'
    const agent = isFresh || unused() > UNUSED_MAX ? false : isTls ? https : http
    const outgoing = (isTls ? requestHttps : requestHttp)({
      protocol: url.protocol,
      hostname: host,
      port: url.port,
      path: `${url.pathname}${url.search}`,
      method: 'POST',
      headers: { 'user-agent': 'sandyard', ...headers, 'content-length': Buffer.byteLength(body) },
      ...(tunnel === null ? { agent, lookup: lookupFor(url) } : { createConnection: () => tunnel }),
      signal,
    })
    const connecting = limitConnecting(outgoing, isTls, limits.connectMs)
    const { promise, resolve: onReply, reject } = Promise.withResolvers<PostReply>()
    outgoing.on('error', (error) => reject(canRepeat(outgoing, error) ? new ClosedMeanwhile() : error))
    outgoing.on('response', (response) => {
      readBeginning(response, limits.bodyBytes).then(onReply, reject)
    })
    outgoing.end(body)
    return await promise.finally(() => clearTimeout(connecting))
  }

  return {
    async send(post) {
      const limit = AbortSignal.timeout(limits.totalMs)
      using either = joinSignals(post.signal, limit)
      try {
        return await attempt(post, { signal: either.signal, isFresh: false }).catch((error: unknown) => {
          if (error instanceof ClosedMeanwhile) return attempt(post, { signal: either.signal, isFresh: true })
          throw error
        })
      } catch (error) {
        if (post.signal.aborted) throw error
        if (limit.aborted) throw new PostFailed(`no reply within ${String(limits.totalMs / 1000)} s`, { cause: error })
        throw error instanceof PostFailed ? error : new PostFailed(describe(error, post.url), { cause: error })
      }
    },
    close() {
      http.destroy()
      https.destroy()
    },
  }
}

/** The host closed an open connection just as it was used again. */
class ClosedMeanwhile extends Error {}

function canRepeat(outgoing: ClientRequest, error: Error): boolean {
  return outgoing.reusedSocket && hasErrorCode(error, 'ECONNRESET', 'EPIPE')
}

function limitConnecting(outgoing: ClientRequest, isTls: boolean, limitMs: number): NodeJS.Timeout {
  const timer = setTimeout(() => {
    outgoing.destroy(new PostFailed(`no connection within ${String(limitMs / 1000)} s`))
  }, limitMs)
  outgoing.once('socket', (socket) => {
    if (outgoing.reusedSocket) clearTimeout(timer)
    else socket.once(isTls ? 'secureConnect' : 'connect', () => clearTimeout(timer))
  })
  return timer
}

/** Reads a reply. One that is longer than what is drained is cut off, with its connection. */
async function readBeginning(response: IncomingMessage, bodyBytes: number): Promise<PostReply> {
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of response) {
    if (size < bodyBytes) chunks.push(Buffer.from(chunk))
    size += chunk.length
    if (size > DRAIN_BYTES) break // leaving the loop closes the connection
  }
  return {
    status: response.statusCode ?? 0,
    body: Buffer.concat(chunks).subarray(0, bodyBytes),
    retryAfter: response.headers['retry-after'] ?? null,
  }
}

/** One text for closed and absent addresses, so that nobody learns from it which names exist inside. */
const NO_ADDRESS = 'there is no address that may be reached'

const REASONS: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'the connection was refused',
  ECONNRESET: 'the connection was closed without a reply',
  ENOTFOUND: NO_ADDRESS,
  EAI_AGAIN: NO_ADDRESS,
  EHOSTUNREACH: 'the host can not be reached',
  ENETUNREACH: 'the network can not be reached',
  ETIMEDOUT: 'no connection in time',
}

function describe(error: unknown, url: URL): string {
  const code = errorCodeOf(error)
  return `${url.host}: ${REASONS[code ?? ''] ?? `the connection failed${code === null ? '' : ` (${code})`}`}`
}
