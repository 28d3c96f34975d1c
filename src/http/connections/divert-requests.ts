import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Duplex } from 'node:stream'
import type { FastifyInstance } from 'fastify'
import type { StreamedBodies } from '../requests/bodies.ts'

/** Takes requests before they reach the routes of the API. */
export type Door = {
  takes(request: IncomingMessage): boolean
  serve(request: IncomingMessage, response: ServerResponse): void
  upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void
  close(): void
}

/** Lets a door take requests and upgrades on the server's port. Their bodies may take any time, as those of streams. */
export function divertRequests(app: FastifyInstance, door: Door, streamedBodies: StreamedBodies): void {
  const { server } = app
  const [serve, upgrade] = [takeListeners(server, 'request'), takeListeners(server, 'upgrade')]
  server.on('request', (request: IncomingMessage, response: ServerResponse) => {
    if (!door.takes(request)) return serve(request, response)
    if (isWithoutBody(request)) return door.serve(request, response)
    streamedBodies.begin({ raw: request }, { raw: response })
    request.once('end', () => request.socket.setTimeout(0)) // the reply may be silent for as long as it likes
    door.serve(request, response)
  })
  server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    if (door.takes(request)) door.upgrade(request, socket, head)
    else upgrade(request, socket, head)
  })
  app.addHook('preClose', (done) => {
    door.close()
    done()
  })
}

function isWithoutBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] === undefined && Number(headers['content-length'] ?? 0) === 0
}

type Listener = (...args: readonly unknown[]) => void

/** Removes the listeners of an event, and returns a function that calls them. */
function takeListeners(server: FastifyInstance['server'], event: string): Listener {
  const listeners = server.listeners(event)
  server.removeAllListeners(event)
  return (...args) => {
    for (const listener of listeners) Reflect.apply(listener, server, args)
  }
}
