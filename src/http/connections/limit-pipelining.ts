import type { IncomingMessage, RequestListener, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

/** The most requests that wait on one connection for the reply before. Clients of today send one at a time. */
const PIPELINED_MAX = 16

/**
 * Serves the requests of one connection one after the other, and cuts a connection on which many wait. Node hands over all
 * that lie in one read at once, up to 1,800, before anything of others, and holds their replies until they can be sent.
 */
export function limitPipelining(server: Server): void {
  const waiting = new WeakMap<Socket, (() => void)[]>()
  const listeners = server.listeners('request') as RequestListener[] // what listens to this event has this type

  const serveNow = (request: IncomingMessage, response: ServerResponse, queue: (() => void)[]): void => {
    response.once('close', () => {
      const next = queue.shift()
      if (next === undefined) waiting.delete(request.socket)
      else setImmediate(next)
    })
    for (const serve of listeners) serve.call(server, request, response)
  }

  server.removeAllListeners('request')
  server.on('request', (request: IncomingMessage, response: ServerResponse) => {
    const { socket } = request
    const queue = waiting.get(socket)
    if (queue === undefined) {
      const newQueue: (() => void)[] = []
      waiting.set(socket, newQueue)
      serveNow(request, response, newQueue)
    } else if (queue.length < PIPELINED_MAX) {
      queue.push(() => {
        if (!socket.destroyed) serveNow(request, response, queue)
      })
    } else socket.destroy()
  })
}
