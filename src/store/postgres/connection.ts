import { Socket } from 'node:net'
import { Client, type ClientConfig } from 'pg'

/** One connection to PostgreSQL. Closing it takes at most `CLOSE_LIMIT_MS`, whatever the network does. */
export type Connection = {
  readonly client: Client
  /** Closes it in order, or cuts it if the server doesn't answer in time. Never rejects; may be repeated. */
  close(): Promise<void>
  /** Cuts it at once; statements that run on it reject. */
  cut(): void
}

export type ConnectionOptions = ClientConfig & {
  readonly connectionString: string
  readonly application_name: string
}

/** How long connecting may take; with a delay of 200 ms each way it takes 2 s (measured 2026-11). */
export const CONNECT_TIMEOUT_MS = 5_000

/** How long the server may take to close its end. An unreachable one never does, and TCP gives up only after 15 minutes. */
const CLOSE_LIMIT_MS = 1_000

/** TCP keep-alive starts after this much silence, then probes ten times, once per second (libuv, `uv_tcp_keepalive`). */
const KEEP_ALIVE_AFTER_MS = 10_000

/**
 * Connects. Rejects with the server's or the system's error. `onLost` is called, once or more, if the connection breaks before it
 * is closed; statements that run on it reject as well.
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
