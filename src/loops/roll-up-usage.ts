import type { Clock } from '../lib/clock.ts'
import type { Database } from '../store/postgres/database.ts'
import { rollUp } from '../store/usage/roll-up.ts'
import type { Loop } from './loop.ts'

/** The most runs that one transaction adds, which takes about 100 ms (docs/decisions/0013-usage.md). */
const BATCH = 5_000

/** Reports read runs that are not rolled up directly. A late pass therefore makes reports slower, never wrong. */
const PERIOD_MS = 10_000

type RollUpDeps = { readonly db: Database; readonly clock: Clock }

/** Adds ended runs to the daily totals that usage reports read, until none is left. */
export function rollUpUsage(deps: RollUpDeps): Loop {
  return { name: 'roll-up-usage', periodMs: PERIOD_MS, topics: [], run: (signal) => pass(deps, signal) }
}

async function pass({ db, clock }: RollUpDeps, signal: AbortSignal): Promise<null> {
  for (;;) {
    signal.throwIfAborted()
    const count = await db.transaction('system', (tx) => rollUp(tx, clock.now(), BATCH))
    if (count < BATCH) return null
  }
}
