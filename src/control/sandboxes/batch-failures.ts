import { isLockTimeout, isUnavailable } from '../../store/postgres/database.ts'

/** How many waits for a lock are met before they are taken for one that stands before all, such as that of a table. */
const LOCK_TIMEOUTS_MAX = 2

/**
 * Makes what is asked of each error that a batch meets: whether the others of the batch would meet it as well, because the
 * database is away or waited too long for locks too often. Any other is of its own transaction alone.
 */
export function makeBatchFailureCheck(): (error: unknown) => boolean {
  let lockTimeouts = 0
  return (error) => isUnavailable(error) && (!isLockTimeout(error) || ++lockTimeouts > LOCK_TIMEOUTS_MAX)
}
