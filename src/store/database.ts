import { Pool, type PoolConfig, type QueryResultRow } from 'pg'
import type { OrgId } from '../domain/ids.ts'
import type { Log } from '../lib/log.ts'
import { isUuid } from '../lib/uuid.ts'
import { holdLock, type HeldLock } from './advisory-lock.ts'
import { columnTypes } from './column-types.ts'
import { DatabaseUnavailable, mayRepeatTransaction } from './database-errors.ts'
import { makeSessions, type Answer, type Queryable, type Session, type Statement } from './session.ts'
import { refuseUnsuitable } from './suitability.ts'

export { constraintOf, isUnavailable, UnsuitableDatabase } from './database-errors.ts'
export type { HeldLock } from './advisory-lock.ts'
export type { Answer, Queryable, Statement } from './session.ts'

/**
 * PostgreSQL as this program sees it. The tables' row-level security compares the setting `sandyard.org` with each row's
 * organization, so that a query that forgets its `where` shows nothing of a stranger: the tenants' pool sets it to one
 * organization's id, the system's pool to `*`. A session setting needs a session of its own: behind a connection pooler,
 * use its session mode.
 */
export interface Database {
  /** Runs `fn` on a connection that sees one organization. Each statement commits by itself. */
  asOrg<T>(org: OrgId, fn: (q: Queryable) => Promise<T>): Promise<T>
  /** Runs `fn` on a connection that sees all organizations. Each statement commits by itself. */
  asSystem<T>(fn: (q: Queryable) => Promise<T>): Promise<T>
  /**
   * Runs `fn` in one transaction (read committed) that commits when `fn` resolves and rolls back when it rejects. After a
   * serialization failure or a deadlock, `fn` runs again, at most `TRANSACTION_TRIES` times in all: it must change
   * nothing but the database. When it rejects with `DatabaseUnavailable`, the commit may or may not have taken effect.
   */
  transaction<T>(scope: OrgId | 'system', fn: (tx: Queryable) => Promise<T>): Promise<T>
  /** Runs one statement as a transaction of its own, tried again as `transaction` is: one round trip in place of three. */
  commit<Row extends QueryResultRow>(scope: OrgId | 'system', statement: Statement): Promise<Answer<Row>>
  /** Takes the lock of this name for the whole cluster of replicas, or resolves to null when somebody has it. */
  tryLock(name: string): Promise<HeldLock | null>
  /** Gives up the locks, waits for what runs (the statement timeout bounds it) and closes every connection. */
  close(): Promise<void>
}

export type DatabaseOptions = {
  readonly connectionString: string
  /** The most connections for requests of organizations. */
  readonly tenantPoolSize: number
  /** The most connections for the program's own work. */
  readonly systemPoolSize: number
  /** How long the server lets one statement run. */
  readonly statementTimeoutMs: number
  readonly log: Log
}

/** How often a transaction is tried in all. */
export const TRANSACTION_TRIES = 4

/** How long a request waits for a connection, new or given back, before it is answered 503. */
const CONNECT_TIMEOUT_MS = 5_000

/** How long an unused connection stays open. */
const IDLE_CONNECTION_MS = 60_000

/** The setting's value that row-level security lets see every organization. */
const EVERY_ORG = '*'

/**
 * Opens both pools. Rejects with `UnsuitableDatabase` when the server is too old or its role is not bound by row-level
 * security, with `DatabaseUnavailable` when it can't be reached. The schema must be there already: see `migrate.ts`.
 */
export async function openDatabase(options: DatabaseOptions): Promise<Database> {
  const sessions = makeSessions(options)
  const tenantPool = new Pool(poolConfig(options, options.tenantPoolSize))
  const systemPool = new Pool(poolConfig(options, options.systemPoolSize))
  const locks = new Set<HeldLock>()
  sessions.watch(tenantPool)
  sessions.watch(systemPool)

  function lend<T>(scope: OrgId | 'system', use: (session: Session) => Promise<T>): Promise<T> {
    if (scope === 'system') return sessions.lend(systemPool, EVERY_ORG, use)
    if (!isUuid(scope)) throw new Error('an organization id that is no UUID must never reach the database')
    return sessions.lend(tenantPool, scope, use)
  }

  async function tryAgain<T>(work: () => Promise<T>): Promise<T> {
    for (let tried = 1; ; tried++) {
      try {
        return await work()
      } catch (error) {
        if (tried === TRANSACTION_TRIES || !mayRepeatTransaction(error)) throw error
        options.log.debug({ error, tried }, 'a transaction is tried again')
      }
    }
  }

  let closing: Promise<void> | null = null
  async function closeAll(): Promise<void> {
    await Promise.all([...locks].map((lock) => lock[Symbol.asyncDispose]()))
    await Promise.all([tenantPool.end(), systemPool.end()])
  }

  const database: Database = {
    asOrg: async (org, fn) => lend(org, fn),
    asSystem: async (fn) => lend('system', fn),
    transaction: (scope, fn) => tryAgain(() => lend(scope, (session) => runTransaction(session, fn, options.log))),
    commit: <Row extends QueryResultRow>(scope: OrgId | 'system', statement: Statement) =>
      tryAgain(() => lend(scope, (session) => session.query<Row>(statement))),
    async tryLock(name) {
      if (closing !== null) throw new DatabaseUnavailable('the database is closed')
      const lock = await holdLock(
        { connectionString: options.connectionString, connectTimeoutMs: CONNECT_TIMEOUT_MS, log: options.log },
        name,
      )
      if (lock !== null) {
        locks.add(lock)
        lock.lost.addEventListener('abort', () => locks.delete(lock), { once: true })
      }
      return lock
    },
    close: () => (closing ??= closeAll()),
  }

  try {
    await sessions.lend(systemPool, EVERY_ORG, refuseUnsuitable)
  } catch (error) {
    await database.close()
    throw error
  }
  return database
}

async function runTransaction<T>(session: Session, fn: (tx: Queryable) => Promise<T>, log: Log): Promise<T> {
  await session.command('begin')
  let result: T
  try {
    result = await fn(session)
  } catch (error) {
    await rollBack(session, log)
    throw error
  }
  // The server answers ROLLBACK to a commit after a failed statement: without this look, a swallowed error loses the work.
  const ended = await session.command('commit')
  if (ended !== 'COMMIT')
    throw new Error('a transaction went on after one of its statements failed; it was rolled back')
  return result
}

async function rollBack(session: Session, log: Log): Promise<void> {
  try {
    await session.command('rollback')
  } catch (error) {
    session.discard()
    log.debug({ error }, 'a transaction could not be rolled back; its connection was closed')
  }
}

function poolConfig(options: DatabaseOptions, size: number): PoolConfig {
  return {
    connectionString: options.connectionString,
    application_name: 'sandyard',
    max: size,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    idleTimeoutMillis: IDLE_CONNECTION_MS,
    statement_timeout: options.statementTimeoutMs,
    idle_in_transaction_session_timeout: options.statementTimeoutMs,
    keepAlive: true,
    types: columnTypes,
  }
}
