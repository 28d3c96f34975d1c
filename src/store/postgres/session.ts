import { setTimeout as setTimer, clearTimeout as clearTimer } from 'node:timers'
import type { ClientBase, QueryConfig, QueryResult as Answer, QueryResultRow } from 'pg'
import type { OrgId } from '../../domain/ids.ts'
import type { Log } from '../../lib/log.ts'
import type { ConnectionPool } from './connection-pool.ts'
import { DatabaseUnavailable, endsConnection, isServerAnswer, isStalePlan } from './database-errors.ts'

/** One SQL statement. With a `name`, the connection prepares the statement. A name must always have the same text. */
export type Statement = {
  readonly name?: string
  readonly text: string
  readonly values?: readonly unknown[]
  /**
   * Whether it only reads or locks rows. At the start of a transaction, it is sent together with `BEGIN`. A statement that
   * writes waits until the server has confirmed `BEGIN`, because it would commit by itself without it.
   */
  readonly isRead?: true
}

/** The rows of a statement, and the number of rows that it returned or changed. */
export type QueryResult<Row> = { readonly rows: readonly Row[]; readonly rowCount: number }

/**
 * Runs statements, in the order of the calls. Several calls of the same moment share a round trip. It works only until the
 * function that received it ends.
 */
export interface Queryable {
  query<Row extends QueryResultRow = Record<string, unknown>>(statement: Statement): Promise<QueryResult<Row>>
}

/** A `Queryable` whose statements commit together. */
export interface Transaction extends Queryable {
  /**
   * Sends a statement that shares a round trip with the next statement or with the commit, if its result is not awaited before
   * the transaction has ended. If the statement fails, the transaction is rolled back and rejects with its error.
   */
  send<Row extends QueryResultRow = Record<string, unknown>>(statement: Statement): Promise<QueryResult<Row>>
  /** Lets the rest of a transaction of the system see one organization only. It costs no round trip. */
  seeOnly(org: OrgId): void
}

/** Options that apply to every connection of the pools. */
export type SessionOptions = {
  /** The server's time limit for a statement. */
  readonly statementTimeoutMs: number
  readonly log: Log
}

/** A `Queryable` with control over its connection. */
export interface Session extends Queryable {
  /** Runs a statement and returns the server's command tag (`COMMIT`, `ROLLBACK`, …). */
  command(text: string): Promise<string>
  /** Closes the connection on release instead of reusing it, because its state is unknown. */
  discard(): void
}

/**
 * The time after the server's own limit at which the client cuts a connection. By then the server must be frozen or
 * unreachable.
 */
const SILENCE_GRACE_MS = 2_000

/**
 * Runs `use` on a connection whose setting `sandyard.org` is `scope`. Rejects with `DatabaseUnavailable` if the pool
 * has no connection, or if the connection breaks.
 */
export async function withSession<T>(
  options: SessionOptions & { readonly pool: ConnectionPool; readonly scope: string },
  use: (session: Session) => Promise<T>,
): Promise<T> {
  const { pool, scope } = options
  const connection = await pool.acquire()
  let isActive = true
  /** The names of the statements without an answer. The server answers them in this order. */
  const unanswered: (string | undefined)[] = []
  let limit: NodeJS.Timeout | undefined

  /** Starts the time limit of the oldest statement without an answer. Those behind it have not begun. */
  function restartLimit(): void {
    clearTimer(limit)
    if (unanswered.length === 0) return
    limit = setTimer(() => {
      options.log.warn({ statement: unanswered[0] ?? null }, 'a database connection does not answer and is cut')
      connection.cut()
      pool.recordSilence()
    }, options.statementTimeoutMs + SILENCE_GRACE_MS)
  }

  async function run<Row extends QueryResultRow>({ name, text, values }: Statement) {
    if (!isActive) throw new Error('a statement was sent after its connection was released')
    unanswered.push(name)
    if (unanswered.length === 1) restartLimit()
    try {
      const statement = { ...(name === undefined ? {} : { name }), text, values: [...(values ?? [])] }
      const result = await ask<Row>(connection.client, statement)
      pool.recordAnswer()
      return result
    } catch (error) {
      if (error instanceof Error) Error.captureStackTrace(error) // that of the library begins at the socket
      if (isServerAnswer(error)) pool.recordAnswer()
      if (isStalePlan(error) || endsConnection(error)) connection.isBroken = true
      else if (connection.isBroken)
        throw new DatabaseUnavailable('the connection to the database was lost', { cause: error })
      throw error
    } finally {
      unanswered.shift()
      restartLimit()
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
    isActive = false
    pool.release(connection)
  }
}

/**
 * Sends a statement with a callback. Without one, `client.query` assigns a function to a property (`query.callback = …`). V8 makes such
 * functions in the old generation, so whatever they refer to, with all rows, stays until a full collection. Each collection of the
 * young generation took 10 to 14 ms instead of 1 to 2 (2026-11, `pg` 8, Node 24, pages of events one after the other).
 */
function ask<Row extends QueryResultRow>(client: ClientBase, statement: QueryConfig): Promise<Answer<Row>> {
  const { promise, resolve, reject } = Promise.withResolvers<Answer<Row>>()
  client.query<Row>(statement, (error: Error | null, result) => {
    if (error === null) resolve(result)
    else reject(error)
  })
  return promise
}

/** Wraps a plain connection, without a pool, as a `Queryable`. */
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
