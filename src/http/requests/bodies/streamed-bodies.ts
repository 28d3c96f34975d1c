import { Socket } from 'node:net'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'

/** Reads request bodies as streams, for operations that take bytes. */

/** How long a streamed body may make no progress before its connection is closed, in milliseconds. */
const STREAM_IDLE_MS = 120_000
/** How long the server continues to read a refused body, so that the client sees the refusal, in milliseconds. */
const REFUSED_LINGER_MS = 5_000

/**
 * The connections on which a body of any length is being streamed. The time limit for the arrival of a request does not
 * apply to them.
 */
export type StreamedBodies = {
  has(socket: Socket): boolean
  /**
   * Exempts a request with a streamed body from the time limit until its reply has ended. Call it once the caller is
   * authenticated.
   */
  begin(request: Pick<FastifyRequest, 'raw'>, reply: Pick<FastifyReply, 'raw'>): void
}

/**
 * Creates an empty set of such connections. A streamed body may take any time while it makes progress. Without progress
 * for `STREAM_IDLE_MS`, its connection is closed.
 */
export function makeStreamedBodies(): StreamedBodies {
  const sockets = new WeakSet<Socket>()
  return {
    has: (socket) => sockets.has(socket),
    begin(request, reply) {
      const { socket } = request.raw
      if (!(socket instanceof Socket)) return // an injected request has no connection
      sockets.add(socket)
      socket.setTimeout(STREAM_IDLE_MS) // Node closes the connection, because no listener handles this timeout
      reply.raw.once('close', () => sockets.delete(socket))
      reply.raw.once('finish', () => {
        if (!request.raw.complete) setTimeout(() => socket.destroy(), REFUSED_LINGER_MS).unref()
      })
    },
  }
}

/** Accepts bodies as streams of bytes, whatever their content type says. An absent body is undefined. */
export function acceptStreamedBodies(scope: FastifyInstance): void {
  scope.removeAllContentTypeParsers()
  scope.addContentTypeParser('*', (_request, payload, done) => {
    done(null, payload)
  })
}
