import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import { WebSocketServer, type WebSocket } from 'ws'
import { Problem } from '../../domain/problem.ts'
import { describeSeenPath, refusalProblem } from '../../domain/refusal.ts'
import type { Log } from '../../lib/log.ts'
import { makePiecePacer, type Pace } from '../../lib/turns/piece-pacer.ts'
import { makeSemaphore } from '../../lib/turns/semaphore.ts'
import { splitMessages } from '../../lib/streams/split-messages.ts'
import type { Uuids } from '../../lib/uuid.ts'
import { isSecureRequest, type ClientAddresses } from '../requests/client-address.ts'
import { problemOf, renderProblem } from '../requests/problem-reply.ts'
import { ClientDisconnected } from '../requests/request-signals.ts'
import { endWithProblem } from '../connections/early-refusals.ts'
import { compilePathTemplate } from '../requests/route-table.ts'

/** A route for WebSockets. */
export type UpgradeRoute = {
  /** The path of the route, with `{name}` for a parameter. */
  readonly path: string
  /** Serves one connection. An error thrown before `accept` is called becomes an HTTP refusal. */
  readonly handle: (upgrade: Upgrade) => Promise<void>
}

/** A request for a WebSocket upgrade. */
export type Upgrade = {
  readonly url: string
  readonly headers: IncomingHttpHeaders
  /** The client's IP address. */
  readonly address: string | undefined
  /** Whether the request came by https. */
  readonly isSecure: boolean
  /** The parameters of the path, percent-decoded. */
  readonly params: Readonly<Record<string, string>>
  readonly requestId: string
  /** Aborted when the client disconnects. */
  readonly signal: AbortSignal
  /** Aborted when the server closes. The server closes WebSockets that are still open a second later. */
  readonly closing: AbortSignal
  /**
   * Sends status 101 and returns the WebSocket, paused. Call it once, after all checks that may refuse the upgrade. With
   * `pacedFor`, its frames are read at a pace. Those with the same value share their turns.
   */
  readonly accept: (headers?: Readonly<Record<string, string>>, pacedFor?: string) => Promise<WebSocket>
}

type UpgradeDeps = {
  readonly log: Log
  readonly uuids: Uuids
  readonly settings: { readonly bodyLimitBytes: number }
  readonly clients: ClientAddresses
  /** Counts a proxied connection against the limit of its client. Throws `rate_limited` at the limit. */
  readonly countProxied: (request: IncomingMessage) => () => void
  readonly routes: readonly UpgradeRoute[]
}

/** The largest WebSocket message, in bytes: twice the largest frame of the agent protocol. */
const MESSAGE_LIMIT_BYTES = 8 * 1024 * 1024
/** How long open WebSockets may take to close while the server closes, in milliseconds. */
const CLOSE_TIMEOUT_MS = 1_000
const GOING_AWAY = 1001
/**
 * The maximum number of upgrades of one route that wait for their reply. The number is several times the limit on
 * command channels of one organization.
 */
const OPENING_MAX = 8_192

/** Serves WebSocket upgrades on the server's port. `app.close()` closes the WebSockets. */
export function attachUpgrades(app: FastifyInstance, deps: UpgradeDeps): void {
  const sockets = new WebSocketServer({ noServer: true, perMessageDeflate: false, maxPayload: MESSAGE_LIMIT_BYTES })
  const extraHeaders = new WeakMap<IncomingMessage, Readonly<Record<string, string>>>()
  sockets.on('headers', (lines, request) => {
    for (const [name, value] of Object.entries(extraHeaders.get(request) ?? {})) lines.push(`${name}: ${value}`)
  })
  // Connections whose upgrade has no reply yet. After the reply, the WebSocketServer owns the connection.
  const pending = new Set<Duplex>()
  // Each route has its own limit. Otherwise clients that wait for a stream could use up the upgrades by which workers
  // provide it.
  const routes = deps.routes.map((route) => ({
    ...route,
    shape: compilePathTemplate(route.path),
    opening: makeSemaphore(OPENING_MAX),
  }))
  const closing = new AbortController()
  const pacer = makePiecePacer()
  app.server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    const requestId = deps.uuids.next()
    pending.add(socket)
    socket.once('close', () => pending.delete(socket))
    socket.on('error', (error) => {
      deps.log.debug({ request_id: requestId, error }, 'a connection broke')
    })
    serve(request, { requestId, socket, head }).catch((error: unknown) => {
      const problem = problemOf(error, deps.settings.bodyLimitBytes)
      if (problem.code === 'internal_error')
        deps.log.error({ request_id: requestId, error: problem.cause }, 'upgrade failed')
      if (socket.writable) endWithProblem(socket, renderProblem(problem, requestId))
      else socket.destroy()
    })
  })
  app.addHook('preClose', async () => {
    for (const socket of pending) socket.destroy()
    closing.abort(new Error('the server is closing'))
    await closeAll(sockets)
  })

  type Connection = { readonly requestId: string; readonly socket: Duplex; readonly head: Buffer }

  async function serve(request: IncomingMessage, { requestId, socket, head }: Connection): Promise<void> {
    const url = request.url ?? ''
    const path = url.split('?', 1)[0] ?? ''
    const found = routes.flatMap((route) => {
      const groups = route.shape.exec(path)
      return groups === null ? [] : [{ route, params: groups.groups ?? {} }]
    })[0]
    if (found === undefined)
      throw new Problem('not_found', {
        details: { field: 'path', seen: describeSeenPath(path), accepted: 'a WebSocket route' },
      })
    socket.once('close', deps.countProxied(request))
    const release = found.route.opening.tryAcquire()
    if (release === null) throw tooManyOpening(found.route.opening.inUse)
    const gone = new AbortController()
    socket.once('close', () => {
      gone.abort(new ClientDisconnected())
    })
    try {
      await found.route.handle({
        url,
        headers: request.headers,
        address: deps.clients.of(request),
        isSecure: isSecureRequest(deps.clients, request),
        params: decodeAll(found.params),
        requestId,
        signal: gone.signal,
        closing: closing.signal,
        accept: async (headers = {}, pacedFor) => {
          pending.delete(socket)
          extraHeaders.set(request, headers)
          const pace = pacedFor === undefined ? {} : { pace: pacer.paceOf(pacedFor) }
          const webSocket = await accept(sockets, request, { socket, head, signal: gone.signal, ...pace })
          release()
          webSocket.on('error', (error) => {
            deps.log.debug({ request_id: requestId, error }, 'a WebSocket broke')
          })
          return webSocket
        },
      })
    } finally {
      release()
    }
  }
}

function tooManyOpening(current: number): Problem {
  const how_to_change = 'try again in a moment, and open fewer connections at once'
  return new Problem('rate_limited', {
    message: `too many requests: ${String(current)} connections are being opened; ${how_to_change}`,
    details: { limit: 'upgrades_under_way', max: OPENING_MAX, current, how_to_change },
    retryAfterSeconds: 1,
  })
}

function decodeAll(params: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  try {
    return Object.fromEntries(Object.entries(params).map(([name, text]) => [name, decodeURIComponent(text)]))
  } catch (error) {
    if (!(error instanceof URIError)) throw error
    throw refusalProblem({
      code: 'invalid_request',
      field: 'path',
      seen: 'a malformed path',
      accepted: 'percent-encoded UTF-8',
    })
  }
}

type Accepted = {
  readonly socket: Duplex
  readonly head: Buffer
  readonly signal: AbortSignal
  readonly pace?: Pace
}

function accept(
  sockets: WebSocketServer,
  request: IncomingMessage,
  { socket, head, signal, ...paced }: Accepted,
): Promise<WebSocket> {
  refuseHandshake(request)
  return new Promise((resolve, reject) => {
    const onGone = (): void => {
      reject(
        new Problem('invalid_request', { message: 'invalid request: the connection ended before it was accepted' }),
      )
    }
    if (signal.aborted) onGone()
    signal.addEventListener('abort', onGone, { once: true })
    // A client that left while its request waited ended its side before anybody could see that behind the splitter.
    if (!socket.readable || !socket.writable) return void socket.destroy()
    const split = splitMessages(socket, { limitBytes: MESSAGE_LIMIT_BYTES, first: head, ...paced })
    sockets.handleUpgrade(request, split, Buffer.alloc(0), (webSocket) => {
      signal.removeEventListener('abort', onGone)
      webSocket.pause() // no message may arrive before there is a listener
      resolve(webSocket)
    })
  })
}

/**
 * Checks the handshake (RFC 6455, section 4.2.1). The `ws` library would refuse an invalid handshake without the error
 * envelope.
 */
function refuseHandshake({ method, headers }: IncomingMessage): void {
  const no = (field: string, seen: string, accepted: string): never => {
    throw refusalProblem({ code: 'invalid_request', field, seen, accepted })
  }
  if (method !== 'GET') no('method', method ?? '', 'GET')
  if (headers['sec-websocket-version'] !== '13')
    no('sec-websocket-version', headers['sec-websocket-version'] ?? 'nothing', '13')
  if (!/^[+/0-9A-Za-z]{22}==$/.test(headers['sec-websocket-key'] ?? ''))
    no('sec-websocket-key', 'a malformed key', '16 bytes in base64')
}

async function closeAll(sockets: WebSocketServer): Promise<void> {
  const open = [...sockets.clients]
  if (open.length === 0) return
  const closed = Promise.all(open.map((socket) => new Promise((resolve) => socket.once('close', resolve))))
  for (const socket of open) socket.close(GOING_AWAY, 'the server is closing')
  await Promise.race([closed, sleep(CLOSE_TIMEOUT_MS)])
  for (const socket of open) socket.terminate()
}
