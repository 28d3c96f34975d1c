/**
 * An HTTP client for addresses that strangers choose. Invariants: only an address that `judge` allowed is dialled, because
 * the connection is made to the judged address and not to the name; every redirect is judged again; no header but harmless
 * ones reaches another origin; and time, size and redirects are limited. Through a proxy, the proxy resolves the name again and
 * connects: a name whose addresses are all closed here is still refused, and the proxy must guard the rest.
 */
import { request as requestHttp, type IncomingMessage } from 'node:http'
import { request as requestHttps } from 'node:https'
import { isIP, type LookupFunction } from 'node:net'
import type { TLSSocket } from 'node:tls'
import { openTunnel } from './proxy-tunnel.ts'
import { resolveBySystem } from './resolve-by-system.ts'

/** What a request would connect to: one of the addresses of a URL's host. */
export type Destination = { readonly url: URL; readonly address: string }

/** `named`: the operator named it, so it may be inside. `public`: anyone may reach it. */
export type Reach = 'named' | 'public'

export type GuardedHttpDeps = {
  /** Decides on one address. Null: it must not be dialled. */
  readonly judge: (destination: Destination) => Reach | null
  /** Resolves the addresses of a name. The default asks the system. */
  readonly resolve?: (name: string) => Promise<readonly string[]>
  /** Returns the proxy for a URL, or null for a direct connection. By default, all connections are direct. */
  readonly proxyFor?: (url: URL) => URL | null
}

/** Stands for the address of a host that only the proxy can resolve. It is special (RFC 5737), so only a named host is allowed. */
const UNKNOWN_ADDRESS = '203.0.113.1'

/** The limits of one request, in milliseconds and bytes. */
export type GuardedLimits = {
  /** From the request, or a redirect, to the head of the reply. */
  readonly replyMs: number
  /** Between two chunks of the body. */
  readonly idleMs: number
  /** From the request to the end of the body. */
  readonly totalMs: number
  readonly bodyBytes: number
}

type GuardedRequest = {
  readonly url: URL
  readonly method: 'GET' | 'HEAD' | 'POST'
  /** The body of a POST. */
  readonly body?: Uint8Array
  readonly headers: Readonly<Record<string, string>>
  readonly limits: GuardedLimits
  readonly signal: AbortSignal
  /** What named the URL: null for the caller itself, otherwise the `reach` of the reply that contained it. */
  readonly linkedFrom: Reach | null
}

export type GuardedReply = {
  readonly status: number
  /** Returns a header. Null if the reply doesn't have it. */
  header(name: string): string | null
  /** The response body. It may be read once. Throws when the connection breaks or a limit is exceeded. */
  readonly body: AsyncIterable<Uint8Array>
  /** Where the reply came from. */
  readonly reach: Reach
  /** Closes the connection without reading the body. */
  discard(): void
}

/** Sends requests. Rejects with an `Error` if the address is closed, the network fails, or a limit is exceeded. */
export interface GuardedHttp {
  send(request: GuardedRequest): Promise<GuardedReply>
}

const MAX_REDIRECTS = 5
const REDIRECTS: ReadonlySet<number> = new Set([301, 302, 303, 307, 308])
/** The headers that another origin may get. Everything else may be a secret. */
const HARMLESS_HEADERS: ReadonlySet<string> = new Set(['accept', 'accept-encoding', 'user-agent'])

/** Creates a client. Each request has a connection of its own, so no judgement outlives the request that it was made for. */
export function makeGuardedHttp({
  judge,
  resolve = resolveBySystem,
  proxyFor = () => null,
}: GuardedHttpDeps): GuardedHttp {
  // A public host must not lead inside, not even to what the operator named: otherwise, any stranger's host could direct
  // requests of its choice there.
  async function findAllowed(url: URL, linkedFrom: Reach | null): Promise<readonly (readonly [string, Reach])[]> {
    const host = url.hostname.replace(/^\[(.*)\]$/, '$1')
    const isProxied = proxyFor(url) !== null
    const resolving = isIP(host) === 0 ? resolve(host) : Promise.resolve([host])
    // Behind a proxy, the machine may be unable to resolve public names.
    const addresses = await (isProxied ? resolving.catch(() => []) : resolving)
    if (isProxied && addresses.length === 0) {
      const reach = judge({ url, address: UNKNOWN_ADDRESS }) ?? 'public'
      return reach === 'named' && linkedFrom === 'public' ? [] : [[UNKNOWN_ADDRESS, reach]]
    }
    return addresses.flatMap((address) => {
      const reach = judge({ url, address })
      return reach === null || (reach === 'named' && linkedFrom === 'public') ? [] : [[address, reach] as const]
    })
  }

  return {
    async send(request) {
      const { limits } = request
      const stop = new AbortController()
      const signal = AbortSignal.any([request.signal, stop.signal])
      const stopAfter = (ms: number, why: string): NodeJS.Timeout =>
        setTimeout(() => {
          stop.abort(new Error(why))
        }, ms)
      const total = stopAfter(limits.totalMs, 'the request took too long')
      const end = (): void => {
        clearTimeout(total)
        stop.abort()
      }
      let { url, headers, linkedFrom } = request
      try {
        for (let redirects = 0; redirects <= MAX_REDIRECTS; redirects++) {
          const timer = stopAfter(limits.replyMs, 'no reply in time')
          try {
            const allowed = await orAborted(findAllowed(url, linkedFrom), signal)
            if (allowed.length === 0) throw new Error(`no address of ${url.host} is allowed`)
            const addresses = allowed.map(([address]) => address)
            const reach = allowed.every(([, found]) => found === 'named') ? 'named' : 'public'
            const proxy = proxyFor(url)
            const tunnel = proxy === null ? null : await openTunnel(proxy, url, signal)
            const response = await dial({ ...request, url, headers, addresses, signal, tunnel })
            const next = findRedirect(url, response)
            if (next === null) return toReply(response, { reach, end, stopAfter, limits })
            response.destroy()
            if (request.method === 'POST')
              throw new Error(`${url.host} redirects, and a body is sent to no other place`)
            if (next.origin !== url.origin) headers = withoutSecrets(headers)
            url = next
            linkedFrom = reach
          } finally {
            clearTimeout(timer)
          }
        }
        throw new Error(`more than ${String(MAX_REDIRECTS)} redirects`)
      } catch (error) {
        end() // closes the connection
        throw error
      }
    },
  }
}

type Dial = Pick<GuardedRequest, 'url' | 'method' | 'headers' | 'body' | 'signal'> & {
  readonly addresses: readonly string[]
  /** A connection to the host through a proxy. Null: the addresses are dialled. */
  readonly tunnel: TLSSocket | null
}

function dial({ url, method, headers, body, signal, addresses, tunnel }: Dial): Promise<IncomingMessage> {
  const found = addresses.map((address) => ({ address, family: isIP(address) }))
  const lookup: LookupFunction = (_name, { all }, callback) => {
    const [first] = found
    if (all === true || first === undefined) callback(null, found)
    else callback(null, first.address, first.family)
  }
  const send = url.protocol === 'https:' ? requestHttps : requestHttp
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
  // The URL's user name and password are left out: they would become an Authorization header.
  const { protocol, hostname, port, pathname, search } = url
  const target = { protocol, hostname: hostname.replace(/^\[(.*)\]$/, '$1'), port, path: `${pathname}${search}` }
  const outgoing = send({
    ...target,
    method,
    headers: { 'user-agent': 'sandyard', ...headers },
    ...(tunnel === null ? { agent: false, lookup } : { createConnection: () => tunnel }),
    signal,
  })
  outgoing.on('error', reject)
  outgoing.on('response', (response) => {
    response.on('error', () => undefined) // whoever reads the body gets the error; without a reader, nobody needs it
    resolve(response)
  })
  outgoing.end(body)
  return promise
}

function findRedirect(from: URL, { statusCode, headers }: IncomingMessage): URL | null {
  if (!REDIRECTS.has(statusCode ?? 0) || headers.location === undefined) return null
  const next = URL.parse(headers.location, from.href)
  if (next === null || !/^https?:$/.test(next.protocol))
    throw new Error(`${from.host} redirects to an unusable address`)
  return next
}

type Replying = {
  readonly reach: Reach
  /** Closes the connection. */
  readonly end: () => void
  readonly stopAfter: (ms: number, why: string) => NodeJS.Timeout
  readonly limits: GuardedLimits
}

function toReply(response: IncomingMessage, replying: Replying): GuardedReply {
  return {
    status: response.statusCode ?? 0,
    header: (name) => {
      const value = response.headers[name.toLowerCase()]
      return value === undefined ? null : String(value)
    },
    body: readBody(response, replying),
    reach: replying.reach,
    discard: replying.end,
  }
}

async function* readBody(response: IncomingMessage, { end, stopAfter, limits }: Replying): AsyncGenerator<Uint8Array> {
  const chunks: AsyncIterator<Uint8Array> = response[Symbol.asyncIterator]()
  let size = 0
  try {
    for (;;) {
      const timer = stopAfter(limits.idleMs, 'the body stalled')
      const next = await chunks.next().finally(() => {
        clearTimeout(timer)
      })
      if (next.done === true) return
      size += next.value.byteLength
      if (size > limits.bodyBytes) throw new Error(`the body is larger than ${String(limits.bodyBytes)} bytes`)
      yield next.value
    }
  } finally {
    end() // closes the connection when the reader stops early
  }
}

function withoutSecrets(headers: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  return Object.fromEntries(Object.entries(headers).filter(([name]) => HARMLESS_HEADERS.has(name.toLowerCase())))
}

async function orAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const aborted = Promise.withResolvers<never>()
  const onAbort = (): void => {
    aborted.reject(signal.reason)
  }
  signal.addEventListener('abort', onAbort, { once: true })
  if (signal.aborted) onAbort()
  try {
    return await Promise.race([work, aborted.promise])
  } finally {
    signal.removeEventListener('abort', onAbort)
  }
}
