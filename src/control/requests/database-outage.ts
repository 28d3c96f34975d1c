import { Problem } from '../../domain/problem.ts'
import { isUnavailable } from '../../store/postgres/database.ts'

/** After how many seconds a client should ask again that met an outage: most outages that end by themselves end in this time. */
const RETRY_AFTER_SECS = 2

/**
 * What the client meets of an error: `unavailable` when the database can't do its work now, with the error as its cause;
 * else the error itself. Whether what was asked for was done is then not known: who repeats it under the same name, or on
 * the same sandbox, meets what is there.
 */
export function mapOutageToProblem(error: unknown): unknown {
  if (!isUnavailable(error)) return error
  const message = 'service unavailable: the database can’t answer now; whether this was done is not known'
  return new Problem('unavailable', { message, retryAfterSeconds: RETRY_AFTER_SECS, cause: error })
}
