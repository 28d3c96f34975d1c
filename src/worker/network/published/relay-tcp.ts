import { connect, createServer, type Server, type Socket } from 'node:net'
import { once } from 'node:events'
import type { Relay, RelayInput } from './published-ports.ts'
import { resetSocket } from '../../../lib/reset-socket.ts'

/** How long the sandbox may take to accept a connection, in milliseconds. */
const CONNECT_TIMEOUT_MS = 10_000

/** Listens on a TCP port of the machine, and joins each connection to one into the sandbox. Rejects if the port can't be opened. */
export async function openTcpRelay({ bind, port, target, allows, budget }: RelayInput): Promise<Relay> {
  const open = new Set<Socket>()
  const server: Server = createServer({ allowHalfOpen: true, pauseOnConnect: true, noDelay: true }, (client) => {
    const { remoteAddress } = client
    if (remoteAddress === undefined || !allows(remoteAddress) || !budget.acquire()) {
      resetSocket(client)
      return
    }
    client.once('close', () => {
      budget.release()
    })
    joinConnection(client, target, open)
  })
  server.listen({ host: bind, port, ipv6Only: true, exclusive: true })
  await once(server, 'listening') // rejects with an error of the server
  server.on('error', () => undefined) // one connection could not be accepted
  return {
    async close() {
      const closed = once(server, 'close')
      server.close()
      for (const socket of open) resetSocket(socket)
      await closed
    },
  }
}

function joinConnection(client: Socket, target: RelayInput['target'], open: Set<Socket>): void {
  const guest = connect({ ...target, allowHalfOpen: true, noDelay: true, timeout: CONNECT_TIMEOUT_MS })
  const reset = (): void => {
    resetSocket(client)
    resetSocket(guest)
  }
  for (const socket of [client, guest]) {
    open.add(socket)
    socket.on('error', reset)
    socket.once('close', () => {
      open.delete(socket)
      // After a proper end the other socket may still have data to send.
      if (!socket.readableEnded) reset()
    })
  }
  guest.once('timeout', () => {
    if (guest.connecting) guest.destroy(new Error('the sandbox did not accept the connection'))
  })
  guest.once('connect', () => {
    guest.setTimeout(0)
    client.pipe(guest)
    guest.pipe(client)
  })
}
