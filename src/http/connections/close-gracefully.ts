import type { Socket } from 'node:net'
import type { FastifyInstance } from 'fastify'

/**
 * How long requests may take to end after the server starts to close, in milliseconds. Then their connections are
 * closed.
 */
const DRAIN_MS = 3_000
/** The interval at which idle connections are closed while the server closes, in milliseconds. */
const SWEEP_MS = 20

/**
 * Closes the server gracefully. Returns a signal that is aborted when the server starts to close. It ends every wait,
 * so that the replies are sent. Connections are closed when they become idle. Node itself closes only the connections
 * that were idle when `close` was called. It leaves open those without any request yet, although clients open some in
 * advance (Node 24).
 */
export function closeGracefully(app: FastifyInstance): AbortSignal {
  const closing = new AbortController()
  const idleSockets = new Set<Socket>()
  const forget = (socket: Socket): boolean => idleSockets.delete(socket)
  app.server.on('connection', (socket: Socket) => {
    idleSockets.add(socket)
    socket.once('close', () => forget(socket))
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
    }, DRAIN_MS)
    app.server.once('close', () => {
      clearInterval(sweep)
      clearTimeout(deadline)
    })
    done()
  })
  return closing.signal
}
