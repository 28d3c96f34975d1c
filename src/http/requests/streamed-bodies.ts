import { Socket } from 'node:net'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'

/** How long a stream may stand still before its connection is dropped, in milliseconds. */
const IDLE_MS = 120_000
/** How long what is left of a refused body is still read, so that the client sees the refusal, in milliseconds. */
const LINGER_MS = 5_000

/** The connections on which a body of any length is under way: the bound on a whole request's time is not for them. */
export type StreamedBodies = {
  has(socket: Socket): boolean
  /** Notes that a request takes or gives a stream, until its reply is over. Called once the caller is known. */
  begin(request: FastifyRequest, reply: FastifyReply): void
}

/** Keeps count of streams. A long one goes on as long as it moves; one that stands still is dropped. */
export function makeStreamedBodies(): StreamedBodies {
  const sockets = new WeakSet<Socket>()
  return {
    has: (socket) => sockets.has(socket),
    begin(request, reply) {
      const { socket } = request.raw
      if (!(socket instanceof Socket)) return // injected, without a connection
      sockets.add(socket)
      socket.setTimeout(IDLE_MS) // the server drops a connection whose timeout nobody else handles
      reply.raw.once('close', () => sockets.delete(socket))
      reply.raw.once('finish', () => {
        if (!request.raw.complete) setTimeout(() => socket.destroy(), LINGER_MS).unref()
      })
    },
  }
}

/** Hands bodies over as streams of bytes, whatever their content type says. No body at all is undefined. */
export function acceptStreamedBodies(scope: FastifyInstance): void {
  scope.removeAllContentTypeParsers()
  scope.addContentTypeParser('*', (_request, payload, done) => {
    done(null, payload)
  })
}
