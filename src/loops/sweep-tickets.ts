import type { TransitionDeps } from '../control/transition.ts'
import * as streamTickets from '../store/stream-tickets.ts'
import type { Loop } from './loop.ts'

const PERIOD_MS = 30_000
/** How many rows one statement removes. */
const BATCH = 1_000

/** Removes tickets for streams whose time is over: those of a process that died. */
export function sweepTickets(deps: Pick<TransitionDeps, 'db' | 'clock'>): Loop {
  return { name: 'sweep-tickets', periodMs: PERIOD_MS, topics: [], run: (signal) => pass(deps, signal) }
}

async function pass({ db, clock }: Pick<TransitionDeps, 'db' | 'clock'>, signal: AbortSignal): Promise<null> {
  for (;;) {
    signal.throwIfAborted()
    if ((await db.asSystem((q) => streamTickets.removeExpired(q, clock.now(), BATCH))) < BATCH) return null
  }
}
