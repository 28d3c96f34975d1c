import { once } from 'node:events'
import { connect, type Socket } from 'node:net'

/**
 * How long the relay may take to accept a connection, in milliseconds. The relay is the runtime's socket to the guest's agent.
 */
const CONNECT_TIMEOUT_MS = 10_000

/**
 * Connects to the relay of a virtual machine's agent. From its first byte on, the socket carries the same agent
 * protocol as a client's channel. The worker need not add the prologue and `core.ready`, because the relay sends them
 * (relay.rs, 0.6.14).
 */
export async function connectAgent(path: string): Promise<Socket> {
  const socket = connect(path)
  try {
    await once(socket, 'connect', { signal: AbortSignal.timeout(CONNECT_TIMEOUT_MS) })
  } catch (error) {
    socket.destroy()
    throw error
  }
  return socket
}
