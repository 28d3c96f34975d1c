import type { Socket } from 'node:net'
import type { FastifyInstance } from 'fastify'
import { clientConnectionEvent } from './client-connection-event.ts'

/**
 * How long requests in progress may take to end once the server starts to close, in milliseconds. After that, all
 * connections are closed.
 */
const DRAIN_MS = 3_000
/** The interval at which idle connections are closed while the server closes, in milliseconds. */
const SWEEP_MS = 20

/**
 * Closes the server gracefully. Returns a signal that is aborted when the server starts to close. Pass the signal to
 * requests that wait, so that they reply at once. While the server closes, each connection is closed as soon as it is
 * idle. Node itself closes only the connections that are idle when `close` is called. It leaves open connections that
 * never had a request, although clients open some in advance (Node 24).
 */
export function closeGracefully(app: FastifyInstance): AbortSignal {
  const closing = new AbortController()
  const idleSockets = new Set<Socket>()
  const forget = (socket: Socket): boolean => idleSockets.delete(socket)
  app.server.on(clientConnectionEvent(app.server), (socket: Socket) => {
    idleSockets.add(socket)
    socket.once('close', () => forget(socket))
  })
  const connected = new Set<Socket>()
  app.server.on('connection', (socket: Socket) => {
    connected.add(socket)
    socket.once('close', () => connected.delete(socket))
  })
  app.server.on('upgrade', ({ socket }) => forget(socket))
  app.addHook('onRequest', ({ raw }, _reply, done) => {
    forget(raw.socket)
    done()
  })
  app.addHook('onResponse', ({ raw }, _reply, done) => {
    if (!raw.socket.destroyed) idleSockets.add(raw.socket)
    done()
  })
  app.addHook('preClose', (done) => {
    closing.abort(new Error('the server is closing'))
    const sweep = setInterval(() => {
      for (const socket of idleSockets) socket.destroySoon()
    }, SWEEP_MS)
    const deadline = setTimeout(() => {
      app.server.closeAllConnections()
      for (const socket of connected) socket.destroy() // Node doesn't close those whose TLS handshake is unfinished
    }, DRAIN_MS)
    app.server.once('close', () => {
      clearInterval(sweep)
      clearTimeout(deadline)
    })
    done()
  })
  return closing.signal
}
