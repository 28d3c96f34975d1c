import assert from 'node:assert/strict'
import { createServer } from 'node:net'
import type { Server, Socket } from 'node:net'
import { waitUntil } from './wait.ts'

/** A TCP server of a test on the loopback device. */
export type TcpServer = {
  readonly port: number
  /** The accepted sockets in order. Each may be half-closed. */
  readonly sockets: readonly Socket[]
  /** Resolves with the next accepted socket that no other call of `accept` has returned. */
  accept(): Promise<Socket>
  close(): Promise<void>
}

/** Starts a server. `serve` gets each socket as it is accepted. */
export async function startTcpServer(serve: (socket: Socket) => void = () => undefined): Promise<TcpServer> {
  const sockets: Socket[] = []
  let given = 0
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    socket.on('error', () => {
      // a peer may reset its connection
    })
    sockets.push(socket)
    serve(socket)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    port: portOf(server),
    sockets,
    async accept() {
      const at = given++
      return await waitUntil(() => sockets[at], 30_000)
    },
    async close() {
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

function portOf(server: Server): number {
  const address = server.address()
  assert.ok(address !== null && typeof address === 'object')
  return address.port
}
