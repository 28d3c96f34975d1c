import { setTimeout as setTimer, clearTimeout as clearTimer } from 'node:timers'
import type { ClientBase, Pool, PoolClient, QueryResultRow } from 'pg'
import type { Log } from '../lib/log.ts'
import { DatabaseUnavailable, endsConnection, isStalePlan } from './database-errors.ts'

/** One statement. A `name` makes it a prepared statement of its connection: the same name is always the same text. */
export type Statement = { readonly name?: string; readonly text: string; readonly values?: readonly unknown[] }

/** What a statement gave: its rows, and how many it returned or changed. */
export type Answer<Row> = { readonly rows: readonly Row[]; readonly rowCount: number }

/** Something that runs statements. It works until the function that received it ends, and not after. */
export interface Queryable {
  query<Row extends QueryResultRow = Record<string, unknown>>(statement: Statement): Promise<Answer<Row>>
}

/** What the pools' connections share. */
export type SessionOptions = {
  /** How long the server lets a statement run. */
  readonly statementTimeoutMs: number
  readonly log: Log
}

/** A `Queryable` that also says what its statement did, in the server's word (`COMMIT`, `ROLLBACK`, …). */
export interface Session extends Queryable {
  command(text: string): Promise<string>
  /** The connection is in a state that nobody knows: it is closed instead of given back. */
  discard(): void
}

/** Keeps what is known of each connection of a pool, and lends them out one function at a time. */
export interface Sessions {
  /** Runs `use` on a connection whose setting `sandyard.org` is `scope`. Rejects with `DatabaseUnavailable` when none can be had. */
  lend<T>(pool: Pool, scope: string, use: (session: Session) => Promise<T>): Promise<T>
  /** Must be called once for each pool, before its first use. */
  watch(pool: Pool): void
}

type ConnectionState = { scope: string | null; isBroken: boolean }

/**
 * How long after the server's own limit the client gives a connection up, in ms: only a server that is frozen or out of
 * reach gets there.
 */
const SILENCE_GRACE_MS = 5_000

/** See `Sessions`. */
export function makeSessions(options: SessionOptions): Sessions {
  const states = new WeakMap<PoolClient, ConnectionState>()

  function stateOf(client: PoolClient): ConnectionState {
    const known = states.get(client)
    if (known !== undefined) return known
    const fresh: ConnectionState = { scope: null, isBroken: false }
    states.set(client, fresh)
    return fresh
  }

  async function lend<T>(pool: Pool, scope: string, use: (session: Session) => Promise<T>): Promise<T> {
    const client = await checkOut(pool)
    const state = stateOf(client)
    let isLent = true

    async function run<Row extends QueryResultRow>(statement: Statement) {
      if (!isLent) throw new Error('a statement came after its connection was given back')
      const timer = setTimer(() => {
        state.isBroken = true
        client.end().catch((error: unknown) => {
          options.log.warn({ error }, 'a silent database connection could not be closed')
        })
      }, options.statementTimeoutMs + SILENCE_GRACE_MS)
      try {
        const { name, text, values } = statement
        return await client.query<Row>({ ...(name === undefined ? {} : { name }), text, values: [...(values ?? [])] })
      } catch (error) {
        if (isStalePlan(error) || endsConnection(error)) state.isBroken = true
        else if (state.isBroken)
          throw new DatabaseUnavailable('the connection to the database was lost', { cause: error })
        throw error
      } finally {
        clearTimer(timer)
      }
    }

    const session: Session = {
      async query<Row extends QueryResultRow>(statement: Statement) {
        const result = await run<Row>(statement)
        return { rows: result.rows, rowCount: result.rowCount ?? 0 }
      },
      async command(text) {
        return (await run({ text })).command
      },
      discard() {
        state.isBroken = true
      },
    }

    try {
      if (state.scope !== scope) {
        state.scope = null
        await session.query({ text: `select set_config('sandyard.org', $1, false)`, values: [scope] })
        state.scope = scope
      }
      return await use(session)
    } finally {
      isLent = false
      client.release(state.isBroken)
    }
  }

  return {
    lend,
    watch(pool) {
      pool.on('connect', (client) => {
        client.on('error', () => {
          stateOf(client).isBroken = true // the statement under way, or the next one, reports it
        })
      })
      pool.on('error', (error) => {
        options.log.warn({ error }, 'an idle database connection was lost')
      })
    },
  }
}

/** A plain connection as a `Queryable`, for what has no pool. */
export function queryableOn(client: ClientBase): Queryable {
  return {
    async query<Row extends QueryResultRow>({ name, text, values }: Statement) {
      const result = await client.query<Row>({
        ...(name === undefined ? {} : { name }),
        text,
        values: [...(values ?? [])],
      })
      return { rows: result.rows, rowCount: result.rowCount ?? 0 }
    },
  }
}

async function checkOut(pool: Pool): Promise<PoolClient> {
  try {
    return await pool.connect()
  } catch (cause) {
    throw new DatabaseUnavailable('no connection to the database could be had', { cause })
  }
}
