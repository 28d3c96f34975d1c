import { DatabaseError } from 'pg'

/** The database can't be reached or lost the connection; whether a commit under way took effect is not known. */
export class DatabaseUnavailable extends Error {}

/** The database answers, but this program must not run on it; the message says what to change. */
export class UnsuitableDatabase extends Error {}

/**
 * The name of the constraint (unique, foreign key, check, not null, exclusion) that a statement would have broken, also
 * when the error was wrapped as a cause; null for every other error.
 */
export function constraintOf(error: unknown): string | null {
  const refusal = databaseErrorIn(error)
  return refusal?.code?.startsWith(INTEGRITY_CLASS) === true ? (refusal.constraint ?? null) : null
}

/**
 * Whether an error says that the database can't do its work now, so that the same request may succeed later: callers
 * answer 503. Judged by SQLSTATE, never by words.
 */
export function isUnavailable(error: unknown): boolean {
  if (causes(error).some((cause) => cause instanceof DatabaseUnavailable)) return true
  const code = databaseErrorIn(error)?.code
  return code !== undefined && (UNAVAILABLE_CODES.has(code) || UNAVAILABLE_CLASSES.has(code.slice(0, 2)))
}

/**
 * Whether a transaction that failed so was rolled back for a reason that its next try need not meet: serialization
 * failure, deadlock, or a plan that a migration made void.
 */
export function mayRepeatTransaction(error: unknown): boolean {
  const refusal = databaseErrorIn(error)
  return refusal?.code === '40001' || refusal?.code === '40P01' || isStalePlan(error)
}

/** Whether a prepared statement of this connection outlived the table that it reads; a new connection is the cure. */
export function isStalePlan(error: unknown): boolean {
  const refusal = databaseErrorIn(error)
  return refusal?.code === '0A000' && refusal.routine === 'RevalidateCachedQuery'
}

/** Whether the server closes the connection after this error (operator intervention, idle limits); the socket shows it only later. */
export function endsConnection(error: unknown): boolean {
  const code = databaseErrorIn(error)?.code
  return code !== undefined && (code.startsWith('57P') || code === '25P03')
}

/** SQLSTATE class 23, integrity constraint violation (PostgreSQL documentation, appendix A). */
const INTEGRITY_CLASS = '23'

/** Connection exception, insufficient resources (too many connections, disk full, memory), system error. */
const UNAVAILABLE_CLASSES: ReadonlySet<string> = new Set(['08', '53', '58'])

const UNAVAILABLE_CODES: ReadonlySet<string> = new Set([
  '57P01', // admin_shutdown
  '57P02', // crash_shutdown
  '57P03', // cannot_connect_now: starting or stopping
  '57P05', // idle_session_timeout
  '57014', // query_canceled: the statement timeout
  '55P03', // lock_not_available: the lock timeout
  '25P03', // idle_in_transaction_session_timeout
  '25006', // read_only_sql_transaction: a standby, in the middle of a failover
  '40001', // serialization_failure, after the tries that a transaction has
  '40P01', // deadlock_detected, likewise
])

/** How deep a chain of causes is followed; ours are two or three deep. */
const CAUSES_LIMIT = 8

function databaseErrorIn(error: unknown): DatabaseError | null {
  return causes(error).find((cause) => cause instanceof DatabaseError) ?? null
}

function causes(error: unknown): readonly unknown[] {
  const chain: unknown[] = []
  for (let cause = error; cause !== undefined && chain.length < CAUSES_LIMIT;) {
    chain.push(cause)
    cause = cause instanceof Error ? cause.cause : undefined
  }
  return chain
}
