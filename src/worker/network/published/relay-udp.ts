import { createSocket, type RemoteInfo, type Socket } from 'node:dgram'
import { once } from 'node:events'
import { isIPv6 } from 'node:net'
import type { Relay, RelayInput } from './published-ports.ts'

/** After this time without a datagram, the replies of the sandbox no longer reach a client, in milliseconds. */
const FLOW_IDLE_MS = 60_000

/** A client of a UDP port: the socket towards the sandbox from which it gets its replies. */
type Flow = { readonly socket: Socket; readonly idle: NodeJS.Timeout }

/**
 * Listens on a UDP port of the machine, and sends each client's datagrams from a socket of its own into the sandbox. Rejects
 * if the port can't be opened.
 */
export async function openUdpRelay({ bind, port, target, allows, budget }: RelayInput): Promise<Relay> {
  const server = createSocket(isIPv6(bind) ? { type: 'udp6', ipv6Only: true } : { type: 'udp4' })
  const flows = new Map<string, Flow>()
  const end = (key: string): void => {
    const flow = flows.get(key)
    if (flow === undefined) return
    flows.delete(key)
    clearTimeout(flow.idle)
    flow.socket.close()
    budget.release()
  }
  const begin = (key: string, client: RemoteInfo): Flow | null => {
    if (!budget.acquire()) return null
    const socket = createSocket('udp4')
    const flow = { socket, idle: setTimeout(end, FLOW_IDLE_MS, key).unref() }
    flows.set(key, flow)
    socket.on('error', () => {
      end(key) // nothing listens in the sandbox
    })
    socket.on('message', (datagram) => {
      flow.idle.refresh()
      server.send(datagram, client.port, client.address, ignore)
    })
    socket.connect(target.port, target.host)
    return flow
  }
  server.on('message', (datagram, client) => {
    if (!allows(client.address)) return
    const key = `${client.address} ${String(client.port)}`
    const flow = flows.get(key) ?? begin(key, client)
    if (flow === null) return
    flow.idle.refresh()
    send(flow.socket, datagram)
  })
  server.bind({ address: bind, port, exclusive: true })
  await once(server, 'listening') // rejects with an error of the server
  server.on('error', ignore)
  return {
    async close() {
      for (const key of flows.keys()) end(key)
      const closed = once(server, 'close')
      server.close()
      await closed
    },
  }
}

/** Sends a datagram on a socket that may still be connecting, which takes no network. */
function send(socket: Socket, datagram: Buffer): void {
  try {
    socket.send(datagram, ignore)
  } catch {
    socket.once('connect', () => {
      socket.send(datagram, ignore)
    })
  }
}

/** A datagram may be lost; each socket's own errors end its flow. */
function ignore(): void {
  // nothing to do
}
