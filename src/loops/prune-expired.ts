/**
 * Deletes what is gone for longer than an operator keeps it, beside full load. Everything is deleted in small steps, one at
 * a time, and after each step the loop rests for longer than the step took. Pruning therefore takes at most a fifth of one
 * connection, however much there is to delete.
 */
import type { BaseDeps } from '../control/deps.ts'
import { DAY_MS, startOfDay } from '../domain/usage/metering.ts'
import * as apiKeys from '../store/orgs/api-keys.ts'
import * as events from '../store/events/events.ts'
import type { PruneStep } from '../store/postgres/prune-step.ts'
import { pruneRuns, prunePrunedSandboxes, pruneSandboxes } from '../store/sandboxes/prune-sandboxes.ts'
import { pruneSandboxDays, pruneStorageAccruals } from '../store/usage/prune-usage.ts'
import * as retentionHorizons from '../store/usage/retention-horizons.ts'
import type { Loop } from './loop.ts'

/** How many days each kind of row is kept after it is gone. 0: for ever. */
export type Retention = {
  readonly sandboxes: number
  readonly runs: number
  readonly events: number
  readonly usage: number
}

type PruneDeps = Pick<BaseDeps, 'db' | 'clock' | 'log'> & { readonly retention: Retention }

/** The maximum number of rows that one step reads. A step takes some 10 to 50 ms. */
const BATCH = 500
const REST_FACTOR = 4
const LEAST_REST_MS = 20
const PERIOD_MS = 3_600_000

/**
 * The steps in their order. A key goes with the events of its end, which name it. A run goes after it is rolled up, and
 * a sandbox's names go with its usage.
 */
const STEPS: readonly { readonly kept: keyof Retention; readonly step: PruneStep; readonly batch?: number }[] = [
  { kept: 'events', step: events.prune },
  { kept: 'events', step: apiKeys.prune },
  { kept: 'runs', step: pruneRuns },
  { kept: 'sandboxes', step: pruneSandboxes },
  { kept: 'usage', step: pruneSandboxDays },
  { kept: 'usage', step: pruneStorageAccruals },
  { kept: 'usage', step: prunePrunedSandboxes },
]

/**
 * Makes the loop. Each of its passes is one step; it waits for its period once nothing is left. The time that it goes by
 * follows the clock by at most a day in each period. A clock that is wrong by a year therefore doesn't delete a year of
 * rows: the log tells about it every hour, and there are days to correct it.
 */
export function makePruneExpiredLoop({ db, clock, log, retention }: PruneDeps): Loop {
  const steps = STEPS.filter(({ kept }) => retention[kept] > 0)
  let at = 0
  let position: { readonly before: Date; readonly last: string | null } | null = null

  let advancedMs = clock.monotonicMs()
  let now = new Date(0)

  /** Sets `now` to the time that the next steps go by. */
  async function advance(): Promise<void> {
    const wanted = clock.now()
    const reached = await db.asSystem((q) => retentionHorizons.findClock(q))
    const aheadMs = wanted.getTime() - (reached ?? wanted).getTime()
    if (reached === null || aheadMs <= DAY_MS) now = wanted
    else {
      const isDue = clock.monotonicMs() - advancedMs >= PERIOD_MS
      now = isDue ? new Date(reached.getTime() + DAY_MS) : reached
      log.warn({ behind_days: Math.round(aheadMs / DAY_MS) }, AHEAD)
    }
    advancedMs = clock.monotonicMs()
    await db.asSystem((q) => retentionHorizons.setClock(q, now))
  }

  async function begin(kept: keyof Retention): Promise<{ readonly before: Date; readonly last: null }> {
    const before = startOfDay(new Date(now.getTime() - retention[kept] * DAY_MS))
    if (kept === 'runs' || kept === 'usage') await db.asSystem((q) => retentionHorizons.raise(q, kept, before))
    return { before, last: null }
  }

  async function run(): Promise<number | null> {
    const current = steps[at]
    if (current === undefined) {
      at = 0
      return null
    }
    const startedMs = clock.monotonicMs()
    if (at === 0 && position === null) await advance()
    const next = at + 1
    at = next // if this step fails, the next pass goes on with the next one
    const { before, last: after } = position ?? (await begin(current.kept))
    position = null
    const { walked, last } = await db.asSystem((q) => current.step(q, { before, after, limit: BATCH, now }))
    if (walked === BATCH) {
      at = next - 1
      position = { before, last }
    }
    return Math.max(LEAST_REST_MS, REST_FACTOR * (clock.monotonicMs() - startedMs))
  }

  return { name: 'prune-expired', periodMs: PERIOD_MS, topics: [], run }
}

const AHEAD =
  'the clock is days ahead of the time for which old rows were deleted, so retention catches up by a day an hour. Check ' +
  "the machine's clock, unless the server was stopped for days"
