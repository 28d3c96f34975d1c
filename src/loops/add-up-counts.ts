import * as orgCounts from '../store/orgs/org-counts.ts'
import type { Database } from '../store/postgres/database.ts'
import type { Loop } from './loop.ts'

/** The maximum number of deltas that one transaction adds up. */
const BATCH = 10_000

/**
 * The time between two passes, in milliseconds. Readers add up the remaining deltas themselves. A late pass therefore makes
 * quotas slower, never wrong.
 */
const PERIOD_MS = 10_000

/** Adds the changes of the numbers of sandboxes and runs to the counts of their organizations, until none is left. */
export function makeAddUpCountsLoop({ db }: { readonly db: Database }): Loop {
  return {
    name: 'add-up-counts',
    periodMs: PERIOD_MS,
    topics: [],
    run: async (signal) => {
      for (;;) {
        signal.throwIfAborted()
        const count = await db.transaction('system', (tx) => orgCounts.addDeltas(tx, BATCH))
        if (count < BATCH) return null
      }
    },
  }
}
