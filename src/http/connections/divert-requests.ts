import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Duplex } from 'node:stream'
import type { FastifyInstance } from 'fastify'
import type { StreamedBodies } from '../requests/bodies/streamed-bodies.ts'

/** Serves the requests and upgrades that it matches, before they reach the routes of the API. */
export type Diversion = {
  matches(request: IncomingMessage): boolean
  serve(request: IncomingMessage, response: ServerResponse): void
  upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void
  close(): void
}

/** Diverts requests and upgrades on the server's port. Their bodies may take any time, as those of streams. */
export function divertRequests(app: FastifyInstance, diversion: Diversion, streamedBodies: StreamedBodies): void {
  const { server } = app
  const [serve, upgrade] = [takeListeners(server, 'request'), takeListeners(server, 'upgrade')]
  server.on('request', (request: IncomingMessage, response: ServerResponse) => {
    if (!diversion.matches(request)) return serve(request, response)
    if (isWithoutBody(request)) return diversion.serve(request, response)
    streamedBodies.begin({ raw: request }, { raw: response })
    request.once('end', () => request.socket.setTimeout(0)) // the reply may be silent for as long as it likes
    diversion.serve(request, response)
  })
  server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    if (diversion.matches(request)) diversion.upgrade(request, socket, head)
    else upgrade(request, socket, head)
  })
  app.addHook('preClose', (done) => {
    diversion.close()
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
