import { Client } from 'pg'
import type { Log } from '../lib/log.ts'
import { DatabaseUnavailable } from './database-errors.ts'

/** A session lock that one process of the cluster holds. Dispose of it to give it up. */
export interface HeldLock extends AsyncDisposable {
  readonly name: string
  /** False from the moment on that this process knows that it lost or gave up the lock. */
  readonly isHeld: boolean
  /** Aborted when the lock is given up or its connection dies: work that must run once stops then. */
  readonly lost: AbortSignal
}

export type LockOptions = { readonly connectionString: string; readonly connectTimeoutMs: number; readonly log: Log }

/** How often the holder asks whether its connection lives, and how long it waits for the answer. */
const HEARTBEAT_EVERY_MS = 5_000
const HEARTBEAT_LIMIT_MS = 5_000

/**
 * Takes PostgreSQL's advisory lock of this name on a connection of its own, which lives as long as the lock. Resolves to
 * null when another session has it. The server frees it when the holder dies; over TCP, 60 seconds after it fell silent.
 */
export async function holdLock(options: LockOptions, name: string): Promise<HeldLock | null> {
  const client = new Client({
    connectionString: options.connectionString,
    application_name: `sandyard lock ${name}`,
    connectionTimeoutMillis: options.connectTimeoutMs,
    query_timeout: HEARTBEAT_LIMIT_MS,
    keepAlive: true,
  })
  const ended = new AbortController()
  const end = (reason: string): void => {
    if (!ended.signal.aborted) ended.abort(new Error(reason))
  }
  client.on('error', (error) => {
    if (!ended.signal.aborted) options.log.warn({ error, lock: name }, 'the connection that holds a lock was lost')
    end('the connection that held the lock was lost')
  })
  client.on('end', () => {
    end('the connection that held the lock was closed')
  })
  try {
    await client.connect()
    if (!(await lockOn(client, name))) {
      await client.end()
      return null
    }
  } catch (cause) {
    await client.end()
    throw new DatabaseUnavailable(`the lock "${name}" could not be asked for`, { cause })
  }
  const heartbeat = setInterval(() => {
    client.query('select 1').catch((error: unknown) => {
      end('the connection that held the lock fell silent')
      options.log.warn({ error, lock: name }, 'a lock was given up: its connection fell silent')
      return client.end()
    })
  }, HEARTBEAT_EVERY_MS)
  heartbeat.unref()
  ended.signal.addEventListener('abort', () => {
    clearInterval(heartbeat)
  })
  return {
    name,
    get isHeld() {
      return !ended.signal.aborted
    },
    lost: ended.signal,
    async [Symbol.asyncDispose]() {
      end('the lock was given up')
      await client.end()
    },
  }
}

async function lockOn(client: Client, name: string): Promise<boolean> {
  await client.query(
    `select set_config('tcp_keepalives_idle', '30', false), set_config('tcp_keepalives_interval', '10', false),
            set_config('tcp_keepalives_count', '3', false)`,
  )
  const { rows } = await client.query<{ taken: boolean }>({
    text: 'select pg_try_advisory_lock(hashtextextended($1, 0)) as taken',
    values: [name],
  })
  return rows[0]?.taken === true
}
