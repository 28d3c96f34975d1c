import type { Clock } from '../lib/clock.ts'
import type { Database } from '../store/postgres/database.ts'
import { rollUp } from '../store/usage/roll-up.ts'
import { accrueSnapshotDays } from '../store/usage/accrue-storage.ts'
import { startOfDay } from '../domain/usage/metering.ts'
import type { Loop } from './loop.ts'

/**
 * The maximum number of runs that one transaction adds to the totals. They take about 100 ms
 * (docs/decisions/0013-usage.md).
 */
const BATCH = 5_000

/**
 * The time between two passes, in milliseconds. For runs that are not in the totals yet, usage reports read the table
 * `runs`. A late pass therefore makes reports slower, never wrong.
 */
const PERIOD_MS = 10_000

type RollUpDeps = { readonly db: Database; readonly clock: Clock }

/** Adds ended runs to the daily totals that usage reports read, and records the past days of snapshots, until none is left. */
export function makeRollUpUsageLoop(deps: RollUpDeps): Loop {
  return { name: 'roll-up-usage', periodMs: PERIOD_MS, topics: [], run: (signal) => pass(deps, signal) }
}

async function pass({ db, clock }: RollUpDeps, signal: AbortSignal): Promise<null> {
  for (;;) {
    signal.throwIfAborted()
    const count = await db.transaction('system', (tx) => rollUp(tx, clock.now(), BATCH))
    if (count < BATCH) break
  }
  for (;;) {
    signal.throwIfAborted()
    const midnight = startOfDay(clock.now())
    const count = await db.transaction('system', (tx) => accrueSnapshotDays(tx, midnight, BATCH))
    if (count < BATCH) return null
  }
}
