import { maxHeaderSize, STATUS_CODES, type IncomingMessage, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { describeSeen, refusalProblem } from '../../domain/refusal.ts'
import { errorCodeOf, hasErrorCode } from '../../lib/error-code.ts'
import type { Uuids } from '../../lib/uuid.ts'
import type { StreamedBodies } from '../requests/bodies/streamed-bodies.ts'
import { renderProblem, type ProblemReply } from '../requests/problem-reply.ts'

/**
 * Refusals before routing: bytes that are not HTTP, and requests that this server does not support. Without this file,
 * Node would close the connection, or answer without the error envelope.
 */

/**
 * Creates the handler of Node's `clientError` event: for bytes that are not HTTP, and for requests that arrive too
 * slowly. The handler sends a refusal and closes the connection.
 */
export function refuseMalformed(uuids: Uuids, streamedBodies: StreamedBodies): (error: Error, socket: Socket) => void {
  return (error, socket) => {
    if (hasErrorCode(error, 'ERR_HTTP_REQUEST_TIMEOUT') && streamedBodies.has(socket)) return
    if (!socket.writable || /^ERR_(?:SSL|TLS)/.test(errorCodeOf(error) ?? '')) {
      socket.destroy()
      return
    }
    const refusal = PARSER_ERRORS[errorCodeOf(error) ?? ''] ?? MALFORMED
    endWithProblem(socket, renderProblem(refusalProblem({ code: 'invalid_request', ...refusal }), uuids.next()))
  }
}

type ParserRefusal = { readonly field: string; readonly seen: string; readonly accepted: string }

const MALFORMED: ParserRefusal = { field: 'request', seen: 'malformed bytes', accepted: 'an HTTP/1.1 request' }

/** Refusals for error codes of Node's parser that tell a client what to change. */
const PARSER_ERRORS: Readonly<Record<string, ParserRefusal>> = {
  HPE_HEADER_OVERFLOW: {
    field: 'headers',
    seen: `more than ${String(maxHeaderSize)} bytes`,
    accepted: `a request line and headers of at most ${String(maxHeaderSize)} bytes`,
  },
  ERR_HTTP_REQUEST_TIMEOUT: { field: 'request', seen: 'late bytes', accepted: 'a whole request in time' },
}

export type UnsupportedRequestDeps = {
  readonly ids: Uuids
  /** Answers a request that has no route. */
  readonly refuseUnrouted: (exchange: {
    readonly request: FastifyRequest
    readonly reply: FastifyReply
  }) => Promise<FastifyReply>
}

/**
 * Refuses valid HTTP requests that this server does not support: no route, no host, an expectation other than
 * `100-continue`, or a tunnel. They are refused before the body is read. Fastify would first read the whole body, even
 * that of an unauthenticated client.
 */
export function refuseUnsupportedRequests(app: FastifyInstance, { ids, refuseUnrouted }: UnsupportedRequestDeps): void {
  app.addHook('onRequest', async (request, reply) => {
    const { httpVersion, headers } = request.raw
    // RFC 9112, section 3.2: a request without a host must be answered with 400.
    if (httpVersion === '1.1' && headers.host === undefined) throw unsupported('host', 'nothing', 'a host header')
    return request.is404 ? refuseUnrouted({ request, reply }) : undefined
  })
  app.setNotFoundHandler(() => {
    throw new Error('a request without a route reached its handler')
  })
  app.server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) => {
    const problem = unsupported('expect', describeSeen(request.headers.expect), '100-continue')
    const { status, headers, body } = renderProblem(problem, ids.next())
    response.writeHead(status, { ...headers, 'content-length': Buffer.byteLength(body), connection: 'close' }).end(body)
  })
  app.server.on('connect', (_request: IncomingMessage, socket: Duplex) => {
    socket.on('error', () => socket.destroy())
    endWithProblem(socket, renderProblem(unsupported('method', 'CONNECT', 'a method of /openapi.json'), ids.next()))
  })
}

function unsupported(field: string, seen: string, accepted: string): ReturnType<typeof refusalProblem> {
  return refusalProblem({ code: 'invalid_request', field, seen, accepted })
}

/** How long a refused client may take to read the refusal and to close its end, in milliseconds. */
const LINGER_MS = 2_000

/** Sends a reply on a connection that has no response object, and closes the connection even if the client doesn't. */
export function endWithProblem(socket: Duplex, reply: ProblemReply): void {
  socket.end(formatRawReply(reply))
  setTimeout(() => socket.destroy(), LINGER_MS).unref()
}

/**
 * Formats a reply as the bytes of HTTP/1.1, for connections that have no response object. Its headers ask the client to
 * close the connection.
 */
export function formatRawReply({ status, headers, body }: ProblemReply): string {
  const all = { ...headers, 'content-length': String(Buffer.byteLength(body)), connection: 'close' }
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`)
  return `HTTP/1.1 ${String(status)} ${STATUS_CODES[status] ?? ''}\r\n${lines.join('')}\r\n${body}`
}
