import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Duplex } from 'node:stream'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { refusalProblem } from '../../domain/spec/refusal.ts'
import type { Uuids } from '../../lib/uuid.ts'
import { renderProblem } from '../server/problem-reply.ts'
import { endWithProblem } from './refuse-malformed.ts'

export type UnsupportedRequestDeps = {
  readonly ids: Uuids
  /** Answers a request that has no route. */
  readonly refuseUnrouted: (exchange: {
    readonly request: FastifyRequest
    readonly reply: FastifyReply
  }) => Promise<FastifyReply>
}

/**
 * Refuses, before any of the body is read, what is HTTP but nothing that this server serves: a request without a route or a
 * host, an expectation other than `100-continue`, a tunnel. Node would close the connection, or answer without the error
 * envelope; and the framework would read the whole body of a request without a route, whoever sent it.
 */
export function refuseUnsupportedRequests(app: FastifyInstance, { ids, refuseUnrouted }: UnsupportedRequestDeps): void {
  app.addHook('onRequest', async (request, reply) => {
    const { httpVersion, headers } = request.raw
    // RFC 9112, 3.2: the reply to such a request must be 400.
    if (httpVersion === '1.1' && headers.host === undefined) throw unsupported('host', 'nothing', 'a host header')
    return request.is404 ? refuseUnrouted({ request, reply }) : undefined
  })
  app.setNotFoundHandler(() => {
    throw new Error('a request without a route reached its handler')
  })
  app.server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) => {
    const problem = unsupported('expect', JSON.stringify(request.headers.expect?.slice(0, 80)), '100-continue')
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
