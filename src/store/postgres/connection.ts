import { Socket } from 'node:net'
import { Client, type ClientConfig } from 'pg'

/** One connection to PostgreSQL, whose end takes no longer than `CLOSE_LIMIT_MS` whatever the network does. */
export type Connection = {
  readonly client: Client
  /** Ends it in order, or without where the server does not answer in time. Never rejects; may be repeated. */
  close(): Promise<void>
  /** Cuts it at once: what runs on it rejects. */
  cut(): void
}

export type ConnectionOptions = ClientConfig & {
  readonly connectionString: string
  readonly application_name: string
}

/** How long a connection may take until it can be used; 200 ms of delay each way make it 2 s (measured 2026-11). */
export const CONNECT_TIMEOUT_MS = 5_000

/** How long the server may take to close its end. A peer that is out of reach never does: TCP gives up after 15 minutes. */
const CLOSE_LIMIT_MS = 1_000

/** After this much silence the system asks the other side for a sign of life, each second, ten times (libuv, `uv_tcp_keepalive`). */
const KEEP_ALIVE_AFTER_MS = 10_000

/**
 * Connects. `onLost` is called, once or more, when the connection breaks without having been closed; what runs on it then
 * rejects as well. Rejects with the server's or the system's own error.
 */
export async function openConnection(options: ConnectionOptions, onLost: (error: Error) => void): Promise<Connection> {
  const socket = new Socket()
  const client = new Client({
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    keepAlive: true,
    keepAliveInitialDelayMillis: KEEP_ALIVE_AFTER_MS,
    ...options,
    stream: () => socket,
  })
  let isOpen = false
  client.on('error', (error) => {
    if (isOpen) onLost(error)
  })
  try {
    await client.connect()
  } catch (error) {
    socket.destroy()
    throw error
  }
  isOpen = true
  return {
    client,
    async close() {
      isOpen = false
      const limit = setTimeout(() => {
        socket.destroy()
      }, CLOSE_LIMIT_MS)
      try {
        await client.end()
      } finally {
        clearTimeout(limit)
      }
    },
    cut() {
      socket.destroy(new Error('the database connection was cut: the server gave no answer'))
    },
  }
}
