import type { QueryResultRow } from 'pg'
import type { OrgId } from '../../domain/ids.ts'
import { ORG_QUEUE_MAX, OrgQueueFull } from '../../domain/requests/org-queue-full.ts'
import { makeFairSemaphore, runFairly } from '../../lib/turns/fair-semaphore.ts'
import type { Log } from '../../lib/log.ts'
import { isUuid } from '../../lib/uuid.ts'
import { columnTypes } from './column-types.ts'
import {
  makeConnectionPool,
  type ConnectionPool,
  type ConnectionPoolOptions,
  type ConnectionPoolUse,
} from './connection-pool.ts'
import { isAfterFailure, isRetryable } from './database-errors.ts'
import { withSession, type QueryResult, type Queryable, type Session, type Statement, type Transaction } from './session.ts' // prettier-ignore
import { checkServerSuitable } from './server-suitability.ts'

export { violatedConstraint, isLockTimeout, isUnavailable, UnsuitableDatabase } from './database-errors.ts'
export type { QueryResult, Queryable, Statement, Transaction } from './session.ts'

/**
 * PostgreSQL with row-level security. A policy compares the setting `sandyard.org` with each row's organization.
 * Therefore even a query without a `where` shows no other tenant's rows. The pool for tenants sets it to an
 * organization's id, and the pool for the system sets it to `*`. It is a session setting, so a connection pooler
 * between Sandyard and PostgreSQL must use session mode.
 */
export interface Database {
  /** Runs `fn` on a connection that sees one organization only. Each statement commits by itself. */
  asOrg<T>(org: OrgId, fn: (q: Queryable) => Promise<T>): Promise<T>
  /** Runs `fn` on a connection that sees all organizations. Each statement commits by itself. */
  asSystem<T>(fn: (q: Queryable) => Promise<T>): Promise<T>
  /**
   * Runs `fn` in one transaction (read committed). The transaction commits if `fn` resolves and rolls back if it
   * rejects. After a serialization failure or a deadlock, `fn` runs again, at most `TRANSACTION_TRIES` times in all.
   * Therefore `fn` must change nothing but the database. If this rejects with `DatabaseUnavailable`, the commit may or
   * may not have taken effect.
   */
  transaction<T>(scope: OrgId | 'system', fn: (tx: Transaction) => Promise<T>): Promise<T>
  /**
   * Runs one statement as a transaction, with the retries of `transaction`. This takes one round trip instead of three.
   */
  commitStatement<Row extends QueryResultRow>(scope: OrgId | 'system', statement: Statement): Promise<QueryResult<Row>>
  /**
   * Whether another organization uses connections too, or did within the last second: in this process, if `connectionsPerOrgAmongOthers` is
   * set.
   */
  isAmongOthers(org: OrgId): boolean
  /** Waits until running statements end, but at most for the statement timeout. Then closes every connection. */
  close(): Promise<void>
}

/** A database with its connection pools. */
export type OpenDatabase = Database & {
  /** What each connection pool does now. */
  readonly poolUse: () => readonly ConnectionPoolUse[]
}

export type DatabaseOptions = {
  readonly connectionString: string
  /** The maximum number of connections for tenants' requests. */
  readonly tenantPoolSize: number
  /** The maximum number of connections for the program's own work. */
  readonly systemPoolSize: number
  /**
   * The maximum number of connections that one organization uses at once. Many or slow requests of an organization then
   * delay only that organization. Further calls wait, and reject with `OrgQueueFull` when too many wait. Absent: no
   * such limit.
   */
  readonly connectionsPerOrg?: number
  /**
   * A lower maximum while another organization uses connections too. All results that are ready are read in one turn of the event loop,
   * so others wait for fewer of them. Absent: the same maximum.
   */
  readonly connectionsPerOrgAmongOthers?: number
  /** The server's time limit for one statement. */
  readonly statementTimeoutMs: number
  readonly log: Log
}

/** How long after its last use an organization still counts as one that uses connections, in milliseconds. */
const OTHERS_MS = 1_000

/** How often a transaction is run at most. */
export const TRANSACTION_TRIES = 4

/**
 * How long a statement waits for a lock. This is less than a caller waits for a connection, so that a locked table is
 * not mistaken for an outage.
 */
const LOCK_TIMEOUT_MS = 4_000

/** The value of the setting `sandyard.org` that makes row-level security show every organization. */
const ALL_ORGS = '*'

/**
 * Opens both connection pools. Rejects with `UnsuitableDatabase` if the server is too old, or if row-level security
 * doesn't apply to its role. Rejects with `DatabaseUnavailable` if the server can't be reached. The schema must exist:
 * see `migrate.ts`.
 */
export async function openDatabase(options: DatabaseOptions): Promise<OpenDatabase> {
  const tenantPool: ConnectionPool = makePoolFor(options, {
    name: 'tenants',
    max: options.tenantPoolSize,
    onServerFull: () => {
      systemPool.shedOne()
    },
  })
  const systemPool: ConnectionPool = makePoolFor(options, {
    name: 'system',
    max: options.systemPoolSize,
    onServerFull: () => {
      tenantPool.shedOne()
    },
  })

  const { connectionsPerOrg = null, connectionsPerOrgAmongOthers = null } = options
  const orgQueue =
    connectionsPerOrg === null
      ? null
      : makeFairSemaphore({
          permits: options.tenantPoolSize,
          permitsPerKey: connectionsPerOrg,
          waitersPerKey: ORG_QUEUE_MAX,
          ...(connectionsPerOrgAmongOthers === null
            ? {}
            : {
                amongOthers: {
                  permitsPerKey: connectionsPerOrgAmongOthers,
                  forMs: OTHERS_MS,
                  nowMs: () => performance.now(),
                },
              }),
        })

  const useSession = async <T>(scope: OrgId | 'system', use: (session: Session) => Promise<T>): Promise<T> => {
    if (scope === 'system') return withSession({ ...options, pool: systemPool, scope: ALL_ORGS }, use)
    if (!isUuid(scope)) throw new Error('an organization id that is no UUID must never reach the database')
    const work = (): Promise<T> => withSession({ ...options, pool: tenantPool, scope }, use)
    return orgQueue === null ? work() : runFairly(orgQueue, scope, { work, onFull: () => new OrgQueueFull() })
  }

  async function withRetries<T>(work: () => Promise<T>): Promise<T> {
    for (let tried = 1; ; tried++) {
      try {
        return await work()
      } catch (error) {
        if (tried === TRANSACTION_TRIES || !isRetryable(error)) throw error
        options.log.debug({ error, tried }, 'a transaction is retried')
      }
    }
  }

  let closing: Promise<void> | null = null
  async function closeAll(): Promise<void> {
    await Promise.all([tenantPool.close(), systemPool.close()])
  }

  const database: OpenDatabase = {
    poolUse: () => [tenantPool.use, systemPool.use],
    asOrg: (org, fn) => useSession(org, fn),
    asSystem: (fn) => useSession('system', fn),
    transaction: (scope, fn) =>
      withRetries(() => useSession(scope, (session) => runTransaction(session, fn, options.log))),
    commitStatement: <Row extends QueryResultRow>(scope: OrgId | 'system', statement: Statement) =>
      withRetries(() => useSession(scope, (session) => session.query<Row>(statement))),
    isAmongOthers: (org) => orgQueue?.isAmongOthers(org) ?? false,
    close: () => (closing ??= closeAll()),
  }

  try {
    await useSession('system', checkServerSuitable)
  } catch (error) {
    await database.close()
    throw error
  }
  return database
}

/**
 * Runs `fn` between BEGIN and COMMIT. BEGIN shares a round trip with the first statements if they only read, and COMMIT with
 * the last ones if `fn` only sends them. A placement takes 4 round trips instead of 11. From a create until its sandbox ran it
 * took 128 ms instead of 151, and 10 % less processor time (2026-11, the driver `simulated`, a load of 15).
 */
async function runTransaction<T>(session: Session, fn: (tx: Transaction) => Promise<T>, log: Log): Promise<T> {
  const beginning = session.command('begin')
  let hasBegun = false
  let mayPass = true // until a statement waits for the answer to BEGIN
  const begun = beginning.then(() => {
    hasBegun = true
  })
  const sent: Promise<unknown>[] = [begun]
  const failures: unknown[] = []
  const query = <Row extends QueryResultRow>(statement: Statement): Promise<QueryResult<Row>> => {
    const one = session.query<Row>(statement)
    one.catch((error: unknown) => failures.push(error))
    return one
  }
  const run = <Row extends QueryResultRow>(statement: Statement): Promise<QueryResult<Row>> => {
    if (hasBegun || (mayPass && statement.isRead === true)) return query<Row>(statement)
    mayPass = false
    return begun.then(() => query<Row>(statement))
  }
  const send = <Row extends QueryResultRow>(statement: Statement): Promise<QueryResult<Row>> => {
    const one = run<Row>(statement)
    one.catch(() => undefined) // reported below
    sent.push(one)
    return one
  }
  const seeOnly = (org: OrgId): void => {
    void send({ name: 'database.seeOnly', text: `SELECT set_config('sandyard.org', $1, true)`, values: [org] })
  }
  begun.catch(() => undefined) // reported below
  let result: T
  let ending: Promise<string>
  try {
    result = await fn({ query: run, send, seeOnly })
    await begun
    ending = session.command('commit')
  } catch (error) {
    await Promise.allSettled(sent)
    await rollBack(session, log)
    // A statement behind a failed one fails because of that one. The first failure is the reason, also if `fn` rejects with the other.
    throw isAfterFailure(error) ? (failures[0] ?? error) : error
  }
  const [ended, ...others] = await Promise.allSettled([ending, ...sent])
  for (const one of [...others, ended]) if (one.status === 'rejected') throw one.reason
  // After a failed statement, the server answers COMMIT with ROLLBACK. Without this check, code that ignores the
  // statement's error would lose its changes unnoticed.
  if (ended.status !== 'fulfilled' || ended.value !== 'COMMIT')
    throw new Error('a transaction continued after one of its statements failed; it was rolled back')
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

function makePoolFor(
  options: DatabaseOptions,
  own: Pick<ConnectionPoolOptions, 'name' | 'max' | 'onServerFull'>,
): ConnectionPool {
  return makeConnectionPool({
    ...own,
    log: options.log,
    connection: {
      connectionString: options.connectionString,
      application_name: 'sandyard',
      statement_timeout: options.statementTimeoutMs,
      lock_timeout: LOCK_TIMEOUT_MS,
      idle_in_transaction_session_timeout: options.statementTimeoutMs,
      types: columnTypes,
      pipeline: true,
    },
  })
}
