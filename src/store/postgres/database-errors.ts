import { DatabaseError } from 'pg'

/** The database can't be reached or lost the connection; whether a commit under way took effect is not known. */
export class DatabaseUnavailable extends Error {}

/** The database answers, but this program must not run on it; the message says what to change. */
export class UnsuitableDatabase extends Error {}

/**
 * The name of the constraint (unique, foreign key, check, not null, exclusion) that a statement would have broken, also
 * when the error was wrapped as a cause; null for every other error.
 */
export function violatedConstraint(error: unknown): string | null {
  const refusal = databaseErrorIn(error)
  return refusal?.code?.startsWith(INTEGRITY_CLASS) === true ? (refusal.constraint ?? null) : null
}

/**
 * Whether an error says that the database can't do its work now, so that the same request may succeed later: callers
 * answer 503. Judged by SQLSTATE, never by words.
 */
export function isUnavailable(error: unknown): boolean {
  if (causeChain(error).some((cause) => cause instanceof DatabaseUnavailable)) return true
  const code = databaseErrorIn(error)?.code
  return code !== undefined && (UNAVAILABLE_CODES.has(code) || UNAVAILABLE_CLASSES.has(code.slice(0, 2)))
}

/**
 * Whether a transaction that failed so was rolled back for a reason that its next try need not meet: serialization
 * failure, deadlock, or a plan that a migration made void.
 */
export function isRetryable(error: unknown): boolean {
  const refusal = databaseErrorIn(error)
  return refusal?.code === '40001' || refusal?.code === '40P01' || isStalePlan(error)
}

/** Whether a prepared statement of this connection outlived the table that it reads; a new connection is the cure. */
export function isStalePlan(error: unknown): boolean {
  const refusal = databaseErrorIn(error)
  return refusal?.code === '0A000' && refusal.routine === 'RevalidateCachedQuery'
}

/**
 * Whether the connection is of no use after this error: the server closes it (operator intervention, time limits; the socket
 * shows it only later), or it leads to a server that takes no writes, where a new one may find the one that does.
 */
export function endsConnection(error: unknown): boolean {
  const code = databaseErrorIn(error)?.code
  return code !== undefined && (code.startsWith('57P') || ENDING_CODES.has(code))
}

/** Whether a statement waited too long for what somebody else has locked; the rest of the database may be well. */
export function isLockTimeout(error: unknown): boolean {
  return databaseErrorIn(error)?.code === '55P03'
}

/** Whether the server refused a connection because all that it has are taken. */
export function isOutOfConnections(error: unknown): boolean {
  return databaseErrorIn(error)?.code === '53300'
}

/** Whether an error is the server's answer to a statement, after which the connection can be used. */
export function isServerAnswer(error: unknown): boolean {
  return error instanceof DatabaseError && !endsConnection(error)
}

const READ_ONLY = '25006' // read_only_sql_transaction: a standby, in the middle of a failover

const ENDING_CODES: ReadonlySet<string> = new Set([
  '25P03', // idle_in_transaction_session_timeout
  '25P04', // transaction_timeout
  READ_ONLY,
])

/** SQLSTATE class 23, integrity constraint violation (PostgreSQL documentation, appendix A). */
const INTEGRITY_CLASS = '23'

/**
 * Connection exception; insufficient resources (connections, disk, memory); operator intervention (shutdown, crash, starting
 * up, the statement timeout); system error; internal error (broken files among them).
 */
const UNAVAILABLE_CLASSES: ReadonlySet<string> = new Set(['08', '53', '57', '58', 'XX'])

const UNAVAILABLE_CODES: ReadonlySet<string> = new Set([
  ...ENDING_CODES,
  '55P03', // lock_not_available: the lock timeout
  '40001', // serialization_failure, after the tries that a transaction has
  '40003', // statement_completion_unknown
  '40P01', // deadlock_detected, likewise
])

/** How deep a chain of causes is followed; ours are two or three deep. */
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
