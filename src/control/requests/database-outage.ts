import { Problem } from '../../domain/problem.ts'
import { isUnavailable } from '../../store/postgres/database.ts'

/** The `Retry-After` of replies during an outage. Most outages that need no repair end within this time. */
const RETRY_AFTER_SECS = 2

/**
 * Maps the error of an unavailable database to `unavailable`, with the error as the cause. Returns any other error
 * unchanged, also a problem that an outage caused: its use case chose the code. A request that gets `unavailable` may or
 * may not have taken effect. If it did, a client that repeats it with the same name or id finds the result.
 */
export function mapOutageToProblem(error: unknown): unknown {
  if (error instanceof Problem || !isUnavailable(error)) return error
  const message = 'service unavailable: the database can’t answer now; this request may or may not have been done'
  return new Problem('unavailable', { message, retryAfterSeconds: RETRY_AFTER_SECS, cause: error })
}
