import { DatabaseError } from 'pg'

/** The database can't be reached, or the connection was lost. It is unknown whether a commit in progress took effect. */
export class DatabaseUnavailable extends Error {}

/** The database can be reached, but this program must not use it. The message tells the operator what to change. */
export class UnsuitableDatabase extends Error {}

/**
 * The name of the constraint (unique, foreign key, check, not null, exclusion) that a statement violated. Also finds
 * the constraint if the error is the cause of another error. Null for every other error.
 */
export function violatedConstraint(error: unknown): string | null {
  const refusal = databaseErrorIn(error)
  return refusal?.code?.startsWith(INTEGRITY_CLASS) === true ? (refusal.constraint ?? null) : null
}

/**
 * Whether the database can't serve requests now but may do so later. Callers then answer 503. This is decided by
 * SQLSTATE, never by the error's text.
 */
export function isUnavailable(error: unknown): boolean {
  if (causeChain(error).some((cause) => cause instanceof DatabaseUnavailable)) return true
  const code = databaseErrorIn(error)?.code
  return code !== undefined && (UNAVAILABLE_CODES.has(code) || UNAVAILABLE_CLASSES.has(code.slice(0, 2)))
}

/**
 * Whether a failed transaction may succeed when it is repeated. True after a serialization failure, a deadlock, or a
 * plan that a migration made stale.
 */
export function isRetryable(error: unknown): boolean {
  const refusal = databaseErrorIn(error)
  return refusal?.code === '40001' || refusal?.code === '40P01' || isStalePlan(error)
}

/**
 * Whether a prepared statement is stale because its table has changed. A new connection prepares the statement again.
 */
export function isStalePlan(error: unknown): boolean {
  const refusal = databaseErrorIn(error)
  return refusal?.code === '0A000' && refusal.routine === 'RevalidateCachedQuery'
}

/**
 * Whether the connection is useless after this error. Either the server closes it (operator intervention, timeouts),
 * which the socket shows only later. Or the server is read-only, and a new connection may reach the primary.
 */
export function endsConnection(error: unknown): boolean {
  const code = databaseErrorIn(error)?.code
  return code !== undefined && (code.startsWith('57P') || ENDING_CODES.has(code))
}

/** Whether a statement was refused because an earlier one of its transaction had failed. */
export function isAfterFailure(error: unknown): boolean {
  return databaseErrorIn(error)?.code === '25P02'
}

/** Whether a statement waited too long for a lock. The rest of the database may still work. */
export function isLockTimeout(error: unknown): boolean {
  return databaseErrorIn(error)?.code === '55P03'
}

/** Whether the server refused a connection because all its connections are in use. */
export function isOutOfConnections(error: unknown): boolean {
  return databaseErrorIn(error)?.code === '53300'
}

/** Whether an error is the server's answer to a statement, so that the connection still works. */
export function isServerAnswer(error: unknown): boolean {
  return error instanceof DatabaseError && !endsConnection(error)
}

const READ_ONLY = '25006' // read_only_sql_transaction: a standby during a failover

const ENDING_CODES: ReadonlySet<string> = new Set([
  '25P03', // idle_in_transaction_session_timeout
  '25P04', // transaction_timeout
  READ_ONLY,
])

/** SQLSTATE class 23, integrity constraint violation (PostgreSQL documentation, appendix A). */
const INTEGRITY_CLASS = '23'

/**
 * The SQLSTATE classes of connection exceptions, insufficient resources (connections, disk, memory), operator
 * intervention (shutdown, crash, start, the statement timeout), system errors, and internal errors such as broken
 * files.
 */
const UNAVAILABLE_CLASSES: ReadonlySet<string> = new Set(['08', '53', '57', '58', 'XX'])

const UNAVAILABLE_CODES: ReadonlySet<string> = new Set([
  ...ENDING_CODES,
  '55P03', // lock_not_available: the lock timeout
  '40001', // serialization_failure, after all tries of a transaction
  '40003', // statement_completion_unknown
  '40P01', // deadlock_detected, after all tries of a transaction
])

/** How many nested causes are searched. Ours are two or three deep. */
const CAUSES_LIMIT = 8

function databaseErrorIn(error: unknown): DatabaseError | null {
  return causeChain(error).find((cause) => cause instanceof DatabaseError) ?? null
}

function causeChain(error: unknown): readonly unknown[] {
  const chain: unknown[] = []
  for (let cause = error; cause !== undefined && chain.length < CAUSES_LIMIT;) {
    chain.push(cause)
    cause = cause instanceof Error ? cause.cause : undefined
  }
  return chain
}
