import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import type { Config } from '../../../config.ts'
import { describeListenError } from '../listen-address.ts'

/** The address of one of several server processes that share a port. */
export type OwnListener = { readonly port: number } & AsyncDisposable

/** The address of the API, which several processes may share. */
export function sharedAddress({ host, port, processes }: Pick<Config, 'host' | 'port' | 'processes'>): {
  readonly host: string
  readonly port: number
  readonly reusePort: boolean
} {
  return { host, port, reusePort: processes > 1 }
}

/**
 * Opens the address that only this process has, if processes share that of the API: the port after it for the first process, the next for
 * the second. Where the system chooses the port of the API, it chooses this one too.
 */
export async function openOwnListener(
  { host, port, processes }: Pick<Config, 'host' | 'port' | 'processes'>,
  { server, index }: { readonly server: Server; readonly index: number },
): Promise<OwnListener | null> {
  return processes === 1 ? null : await listenAlone(server, { host, port: port === 0 ? 0 : port + 1 + index })
}

/**
 * Accepts connections on an address that no other process shares, and hands them to a server. Dispose it after the server has
 * closed what it serves: it ends the connections that are left.
 */
async function listenAlone(
  server: Server,
  address: { readonly host: string; readonly port: number },
): Promise<OwnListener> {
  const sockets = new Set<Socket>()
  // The options are those with which Node's HTTP server accepts connections itself.
  const listener = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
    server.emit('connection', socket)
  })
  try {
    listener.listen(address)
    await once(listener, 'listening')
  } catch (error) {
    throw describeListenError(error, address)
  }
  const bound = listener.address()
  return {
    port: typeof bound === 'object' && bound !== null ? bound.port : 0,
    async [Symbol.asyncDispose]() {
      const closed = once(listener, 'close')
      listener.close()
      for (const socket of sockets) socket.destroy()
      await closed
    },
  }
}
