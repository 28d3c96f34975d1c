import { Agent, request as requestHttps, type RequestOptions } from 'node:https'
import type { IncomingMessage } from 'node:http'
import { text } from 'node:stream/consumers'
import { WebSocket } from 'ws'
import { joinSignals } from '../../lib/join-signals.ts'
import { paceMessages } from '../../lib/streams/web-socket-flow.ts'
import type { Pace } from '../../lib/turns/piece-pacer.ts'
import { makeApiError } from './api-error.ts'
import type { ClusterAccess } from './cluster-access.ts'

/** A client of the API of Kubernetes: requests, streams of bytes, and WebSockets. */
export type ApiClient = {
  /**
   * Sends a request and resolves with the JSON of the answer. Rejects with `ApiError` if the status is not 2xx, and with the error of
   * the connection if there was no answer; the API server may then have done the work nevertheless.
   */
  request<Answer>(method: Method, path: string, body?: object, options?: RequestLimits): Promise<Answer>
  /** Sends a GET and resolves with the stream of the answer, which the caller reads or destroys. Rejects as `request`. */
  open(path: string, signal: AbortSignal): Promise<IncomingMessage>
  /** Opens a WebSocket with one of the subprotocols, paused. With `pace`, its messages arrive at it. Rejects as `request`. */
  openSocket(path: string, protocol: string, options: SocketOptions): Promise<WebSocket>
  /** Ends all idle connections. */
  close(): void
}

/** `PATCH` is a server-side apply: it creates the object, or changes the fields that the caller owns. */
type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
type Sent = Omit<RequestOptions, 'headers'> & { readonly headers?: Readonly<Record<string, string | number>> }
type SocketOptions = { readonly pace?: Pace; readonly signal: AbortSignal }
type RequestLimits = { readonly signal?: AbortSignal; readonly timeoutMs?: number }

/** How long a request may take. etcd's own limit is 10 s, and the API server's 60 s. */
const REQUEST_MS = 30_000
/** How long the answer to a stream may take to begin. */
const STREAM_BEGIN_MS = 30_000
/** JSON is a form of YAML, too. */
const CONTENT_TYPES: Partial<Readonly<Record<Method, string>>> = { PATCH: 'application/apply-patch+yaml' }
const CONNECTIONS = 32
/** The largest answer of a request: a list of 5,000 Pods has about 40 MiB. */
const ANSWER_LIMIT_BYTES = 256 * 1024 * 1024

/** Makes a client. It connects at the first request. */
export function makeApiClient(access: ClusterAccess): ApiClient {
  const tls = {
    ...(access.ca === null ? {} : { ca: access.ca }),
    ...(access.serverName === null ? {} : { servername: access.serverName }),
    ...access.certificate,
  }
  const agent = new Agent({ ...tls, keepAlive: true, maxSockets: CONNECTIONS })
  // Streams stay open, so each has a connection of its own and takes none from the requests.
  const streamAgent = new Agent({ ...tls, keepAlive: false })

  const authorize = async (): Promise<Record<string, string>> =>
    access.readToken === null ? {} : { authorization: `Bearer ${await access.readToken()}` }

  const sendOnce = async (path: string, options: Sent, body?: string): Promise<IncomingMessage | 'stale'> => {
    const headers = { ...(await authorize()), ...options.headers }
    return await new Promise((resolve, reject) => {
      const asked = requestHttps(`${access.server}${path}`, { ...options, headers })
      asked.once('error', (error) => {
        if (asked.reusedSocket && options.signal?.aborted !== true) resolve('stale')
        else reject(error)
      })
      asked.once('response', resolve)
      asked.end(body)
    })
  }
  // The API server may close a kept connection just when a request is sent on it. All requests may be repeated: a create names
  // its object, and a deletion the object's uid.
  const send = async (path: string, options: Sent, body?: string): Promise<IncomingMessage> => {
    for (;;) {
      const reply = await sendOnce(path, options, body)
      if (reply !== 'stale') return reply
    }
  }

  return {
    async request<Answer>(method: Method, path: string, body?: object, limits: RequestLimits = {}): Promise<Answer> {
      const { signal, timeoutMs = REQUEST_MS } = limits
      const content = body === undefined ? undefined : JSON.stringify(body)
      const timeout = AbortSignal.timeout(timeoutMs)
      // Without its length, a DELETE with a body breaks the next request of the connection (Node 24).
      const headers =
        content === undefined
          ? {}
          : {
              'content-type': CONTENT_TYPES[method] ?? 'application/json',
              'content-length': Buffer.byteLength(content),
            }
      using either = joinSignals(timeout, ...(signal === undefined ? [] : [signal]))
      const reply = await send(path, { method, headers, agent, signal: either.signal }, content)
      const answer = await limitedText(reply)
      const { statusCode = 0 } = reply
      if (statusCode < 200 || statusCode > 299) throw makeApiError(`${method} ${pathOnly(path)}`, statusCode, answer)
      return JSON.parse(answer) as Answer // the caller names the type of what it asked for
    },
    async open(path, signal) {
      const begin = new AbortController()
      const timer = setTimeout(() => {
        begin.abort(new Error(`the API server did not begin to answer GET ${pathOnly(path)}`))
      }, STREAM_BEGIN_MS)
      const either = joinSignals(signal, begin.signal)
      try {
        const reply = await send(path, { method: 'GET', agent: streamAgent, signal: either.signal })
        const { statusCode = 0 } = reply
        if (statusCode !== 200) throw makeApiError(`GET ${pathOnly(path)}`, statusCode, await limitedText(reply))
        reply.once('close', () => {
          either[Symbol.dispose]()
        })
        return reply
      } catch (error) {
        either[Symbol.dispose]()
        throw error
      } finally {
        clearTimeout(timer)
      }
    },
    async openSocket(path, protocol, { pace, signal }) {
      const headers = await authorize()
      return await new Promise((resolve, reject) => {
        const socket = new WebSocket(`${access.server.replace(/^https/, 'wss')}${path}`, [protocol], {
          ...tls,
          headers,
          perMessageDeflate: false,
          handshakeTimeout: STREAM_BEGIN_MS,
        })
        if (pace !== undefined) paceMessages(socket, pace)
        const onAbort = (): void => {
          socket.terminate()
        }
        signal.addEventListener('abort', onAbort, { once: true })
        if (signal.aborted) onAbort()
        socket.once('unexpected-response', (_request, reply) => {
          limitedText(reply).then((answer) => {
            reject(makeApiError(`GET ${pathOnly(path)}`, reply.statusCode ?? 0, answer))
            socket.terminate()
          }, reject)
        })
        socket.on('error', (error) => {
          signal.removeEventListener('abort', onAbort)
          reject(signal.aborted && signal.reason instanceof Error ? signal.reason : error)
        })
        socket.once('open', () => {
          signal.removeEventListener('abort', onAbort)
          socket.pause() // until the caller listens
          resolve(socket)
        })
      })
    },
    close() {
      agent.destroy()
      streamAgent.destroy()
    },
  }
}

async function limitedText(reply: IncomingMessage): Promise<string> {
  let bytes = 0
  reply.on('data', (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes > ANSWER_LIMIT_BYTES) reply.destroy(new Error('the answer of the API server is too long'))
  })
  return await text(reply)
}

/** The path without its query, which may have a command of a sandbox. */
function pathOnly(path: string): string {
  return path.split('?', 1)[0] ?? path
}
