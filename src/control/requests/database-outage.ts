import { Problem } from '../../domain/problem.ts'
import { isUnavailable } from '../../store/postgres/database.ts'

/** The `Retry-After` of an outage: most outages that end by themselves end within this time. */
const RETRY_AFTER_SECS = 2

/**
 * Maps an error of an unavailable database to `unavailable`, with the error as the cause; returns any other error as it is.
 * Whether the request was done is not known then. A client that repeats it by the same name or id finds what is there.
 */
export function mapOutageToProblem(error: unknown): unknown {
  if (!isUnavailable(error)) return error
  const message = 'service unavailable: the database can’t answer now; whether this request was done is not known'
  return new Problem('unavailable', { message, retryAfterSeconds: RETRY_AFTER_SECS, cause: error })
}
