import { Client, type ClientConfig } from 'pg'
import { DatabaseSocket } from './database-socket.ts'
import { acceptLargeValues } from './large-values.ts'

/** One connection to PostgreSQL. Closing it takes at most `CLOSE_LIMIT_MS`, even if the network is down. */
export type Connection = {
  readonly client: Client
  /** Closes the connection cleanly, or cuts it if the server doesn't answer in time. Never rejects. May be repeated. */
  close(): Promise<void>
  /** Cuts the connection at once. Statements that run on it reject. */
  cut(): void
}

export type ConnectionOptions = ClientConfig & {
  readonly connectionString: string
  readonly application_name: string
}

/** How long connecting may take. With a delay of 200 ms each way, it takes 2 s (measured 2026-11). */
export const CONNECT_TIMEOUT_MS = 5_000

/**
 * How long the server may take to close its end. An unreachable server never closes its end, and TCP would give up only
 * after 15 minutes.
 */
const CLOSE_LIMIT_MS = 1_000

/** The silence after which TCP sends keep-alive probes: ten, once per second (libuv, `uv_tcp_keepalive`). */
const KEEP_ALIVE_AFTER_MS = 10_000

/**
 * Opens a connection. Rejects with the server's or the system's error. `onLost` is called, possibly more than once, if
 * the connection breaks before it is closed. Statements that run on it then reject as well.
 */
export async function openConnection(options: ConnectionOptions, onLost: (error: Error) => void): Promise<Connection> {
  const socket = new DatabaseSocket()
  const client = new Client({
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    keepAlive: true,
    keepAliveInitialDelayMillis: KEEP_ALIVE_AFTER_MS,
    ...options,
    stream: () => socket,
  })
  acceptLargeValues(client.connection)
  let isOpen = false
  const broken: { error: Error | null } = { error: null }
  client.on('error', (error) => {
    broken.error = error
    if (isOpen) onLost(error)
  })
  try {
    await client.connect()
    if (broken.error !== null) throw broken.error // the server's last words arrived together with its greeting
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
