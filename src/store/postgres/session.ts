import { setTimeout as setTimer, clearTimeout as clearTimer } from 'node:timers'
import type { ClientBase, QueryResultRow } from 'pg'
import type { Log } from '../../lib/log.ts'
import type { ConnectionPool } from './connection-pool.ts'
import { DatabaseUnavailable, endsConnection, isServerAnswer, isStalePlan } from './database-errors.ts'

/** One statement. A `name` makes it a prepared statement of its connection: the same name is always the same text. */
export type Statement = { readonly name?: string; readonly text: string; readonly values?: readonly unknown[] }

/** What a statement gave: its rows, and how many it returned or changed. */
export type QueryResult<Row> = { readonly rows: readonly Row[]; readonly rowCount: number }

/** Something that runs statements. It works until the function that received it ends, and not after. */
export interface Queryable {
  query<Row extends QueryResultRow = Record<string, unknown>>(statement: Statement): Promise<QueryResult<Row>>
}

/** What all connections of pools share. */
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

/**
 * How long after the server's own limit the client gives a connection up, in ms: only a server that is frozen or out of
 * reach gets there.
 */
const SILENCE_GRACE_MS = 2_000

/**
 * Runs `use` on a connection of a pool whose setting `sandyard.org` is `scope`. Rejects with `DatabaseUnavailable` when none
 * can be had, or when it breaks.
 */
export async function withSession<T>(
  options: SessionOptions & { readonly pool: ConnectionPool; readonly scope: string },
  use: (session: Session) => Promise<T>,
): Promise<T> {
  const { pool, scope } = options
  const connection = await pool.acquire()
  let isLent = true

  async function run<Row extends QueryResultRow>({ name, text, values }: Statement) {
    if (!isLent) throw new Error('a statement came after its connection was given back')
    const limit = setTimer(() => {
      options.log.warn({ statement: name ?? null }, 'a database connection fell silent and is cut')
      connection.cut()
      pool.recordSilence()
    }, options.statementTimeoutMs + SILENCE_GRACE_MS)
    try {
      const statement = { ...(name === undefined ? {} : { name }), text, values: [...(values ?? [])] }
      const result = await connection.client.query<Row>(statement)
      pool.recordAnswer()
      return result
    } catch (error) {
      if (isServerAnswer(error)) pool.recordAnswer()
      if (isStalePlan(error) || endsConnection(error)) connection.isBroken = true
      else if (connection.isBroken)
        throw new DatabaseUnavailable('the connection to the database was lost', { cause: error })
      throw error
    } finally {
      clearTimer(limit)
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
      connection.isBroken = true
    },
  }

  try {
    if (connection.scope !== scope) {
      connection.scope = null
      await session.query({ text: `select set_config('sandyard.org', $1, false)`, values: [scope] })
      connection.scope = scope
    }
    return await use(session)
  } finally {
    isLent = false
    pool.release(connection)
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
