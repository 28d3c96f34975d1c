import type { IncomingMessage, RequestListener, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { Server as TlsServer } from 'node:tls'
import type { FastifyInstance } from 'fastify'
import { makeConcurrencyLimit } from '../../control/requests/concurrency-limit.ts'
import { rateLimitAddress } from '../../lib/rate-limit-address.ts'
import type { Uuids } from '../../lib/uuid.ts'
import type { ClientAddresses } from '../requests/client-address.ts'
import { problemOf, renderProblem } from '../requests/problem-reply.ts'
import { onResponseClose } from '../requests/request-signals.ts'
import { clientConnectionEvent } from './client-connection-event.ts'
import { formatRawReply } from './early-refusals.ts'

/** The limits on open connections of a server process. */
export type ConnectionLimits = {
  readonly capacity: number
  readonly perAddress: number
  /** The interval at which the server checks that clients read its replies, in milliseconds. */
  readonly checkIntervalMs: number
}

/**
 * At this many consecutive checks without progress, a connection is closed. Its client is gone, or stalls on purpose.
 */
const STALLED_CHECKS_MAX = 3

/**
 * How many bytes the client of a connection has read so far, and at how many consecutive checks the number had not
 * grown although more data was waiting.
 */
type SendProgress = { readonly sentBytes: number; readonly stalledChecks: number }

export type ConnectionLimitDeps = {
  readonly limits: ConnectionLimits
  readonly ids: Uuids
  readonly clients: ClientAddresses
}

/**
 * Limits the open connections of a server, in total and per address. A connection above a limit gets `rate_limited` and
 * is closed. This function also closes connections whose client stops reading, because an unread reply stays in memory.
 *
 * A trusted proxy sends the requests of many clients on its connections. So its connections count only in total, and
 * each of its requests in progress counts against the limit of its client. Returns the function that counts an upgrade
 * of a proxy.
 */
export function limitConnections(
  app: FastifyInstance,
  { limits, ids, clients }: ConnectionLimitDeps,
): (request: IncomingMessage) => () => void {
  const capacity = { name: 'connections', variable: 'SANDYARD_CONNECTION_CAPACITY', max: limits.capacity }
  const perAddress = { name: 'connections_per_address', variable: 'SANDYARD_CONNECTIONS_PER_ADDRESS', max: limits.perAddress } // prettier-ignore
  const advice = 'close connections that are not used'
  const ofAddress = makeConcurrencyLimit<string>([{ ...perAddress, keyOf: (address) => address }], advice)
  const ofAll = makeConcurrencyLimit<null>([{ ...capacity, keyOf: () => 'all' }], advice)
  const countConnection = ({ remoteAddress }: Socket): (() => void) => {
    if (clients.isProxy(remoteAddress)) return ofAll.acquire(null)
    const release = ofAddress.acquire(rateLimitAddress(remoteAddress))
    try {
      const releaseTotal = ofAll.acquire(null)
      return () => {
        release()
        releaseTotal()
      }
    } catch (error) {
      release()
      throw error
    }
  }
  const countProxied = (request: IncomingMessage): (() => void) =>
    clients.isProxy(request.socket.remoteAddress)
      ? ofAddress.acquire(rateLimitAddress(clients.of(request)))
      : () => undefined
  const open = new Map<Socket, SendProgress>()
  const encrypted = app.server instanceof TlsServer
  app.server.on('connection', (socket: Socket) => {
    try {
      socket.once('close', countConnection(socket))
    } catch (error) {
      if (encrypted)
        socket.destroy() // a client of TLS could not read a reply before the handshake
      else {
        socket.write(formatRawReply(renderProblem(problemOf(error, 0), ids.next())))
        socket.destroySoon()
      }
    }
  })
  app.server.on(clientConnectionEvent(app.server), (socket: Socket) => {
    if (socket.destroyed || socket.writableEnded) return
    open.set(socket, { sentBytes: 0, stalledChecks: 0 })
    socket.once('close', () => open.delete(socket))
  })
  const checking = setInterval(() => {
    for (const [socket, before] of open) {
      const now = checkProgress(socket, before)
      if (now.stalledChecks < STALLED_CHECKS_MAX) open.set(socket, now)
      else socket.destroy()
    }
  }, limits.checkIntervalMs).unref()
  app.server.once('close', () => {
    clearInterval(checking)
  })
  app.addHook('onRequest', ({ raw }, reply, done) => {
    if (clients.isProxy(raw.socket.remoteAddress)) onResponseClose(reply.raw, countProxied(raw))
    done()
  })
  return countProxied
}

function checkProgress(socket: Socket, before: SendProgress): SendProgress {
  const sentBytes = socket.bytesWritten - socket.writableLength
  return {
    sentBytes,
    stalledChecks: socket.writableLength > 0 && sentBytes === before.sentBytes ? before.stalledChecks + 1 : 0,
  }
}

/**
 * The maximum number of requests that wait on a connection while an earlier request of the connection is served. Common
 * clients send one request at a time. Each that waits is parsed, kept in memory, and aborted if the connection is closed: beside lists whose
 * replies nobody reads, the p99 of others was 49 and 51 ms with 16 of them, and 35 and 27 with 4 (2026-11, 2 cores).
 */
const PIPELINED_MAX = 4

/**
 * Serves the requests of one connection one after the other, and closes a connection on which too many requests wait.
 * Node itself would start all requests that one read returns, up to 1,800, before it serves other connections. It would
 * keep all their replies in memory.
 */
export function limitPipelining(server: Server): void {
  const waiting = new WeakMap<Socket, (() => void)[]>()
  const listeners = server.listeners('request') as RequestListener[] // listeners of this event have this type

  // Whoever still works for a closed connection keeps it in memory, but not the requests that waited on it.
  const forget = (socket: Socket, queue: (() => void)[]): void => {
    waiting.delete(socket)
    queue.length = 0
  }
  const serveNow = (request: IncomingMessage, response: ServerResponse, queue: (() => void)[]): void => {
    response.once('close', () => {
      const next = request.socket.destroyed ? undefined : queue.shift()
      if (next !== undefined) setImmediate(next)
      else forget(request.socket, queue)
    })
    for (const listener of listeners) listener.call(server, request, response)
  }

  server.removeAllListeners('request')
  server.on('request', (request: IncomingMessage, response: ServerResponse) => {
    const { socket } = request
    if (!socket.writable) return // it was closed for an earlier request, whose bytes came together with this one's
    const queue = waiting.get(socket)
    if (queue === undefined) {
      const newQueue: (() => void)[] = []
      waiting.set(socket, newQueue)
      serveNow(request, response, newQueue)
    } else if (queue.length < PIPELINED_MAX) {
      queue.push(() => {
        if (socket.destroyed) forget(socket, queue)
        else serveNow(request, response, queue)
      })
    } else {
      stopParsing(socket)
      destroyWithoutStacks(socket)
    }
  })
}

/** What a parser of Node calls for each head; a negative number ends the parsing with an error. */
const REFUSE_HEAD = (): number => -1

/**
 * Ends the parsing of what a connection has sent. Node parses all that one read returned, even if the connection was destroyed for an
 * early request of it, and then aborts each request: 6 to 16 µs each (Node 24.21, 2026-11). A parser can't be paused within a read, but
 * it stops when a head is refused. `parser` isn't documented; without it, the requests are parsed and aborted.
 */
function stopParsing(socket: Socket): void {
  const parser: unknown = Reflect.get(socket, 'parser')
  if (typeof parser === 'object' && parser !== null) Reflect.set(parser, 'onIncoming', REFUSE_HEAD)
}

/** Destroys a connection whose waiting requests Node aborts with an error each, whose stack would take most of the time (Node 24.21). */
function destroyWithoutStacks(socket: Socket): void {
  let usual = Error.stackTraceLimit
  socket.prependOnceListener('close', () => {
    usual = Error.stackTraceLimit
    Error.stackTraceLimit = 0
  })
  // Node aborts them in its own listener, between these two.
  socket.once('close', () => {
    Error.stackTraceLimit = usual
  })
  socket.destroy()
}
