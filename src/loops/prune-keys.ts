import type { ControlDeps } from '../control/deps.ts'
import * as idempotency from '../store/idempotency.ts'
import type { Loop } from './loop.ts'

/** The most keys that one statement forgets. */
const BATCH = 5_000
/** How long after a full batch the next is due, in milliseconds. */
const NEXT_BATCH_MS = 100

/** Forgets Idempotency-Keys whose time is over; a key that is used before that is a new one all the same. */
export function pruneKeys({ db, clock }: Pick<ControlDeps, 'db' | 'clock'>): Loop {
  return {
    name: 'prune-keys',
    periodMs: 60_000,
    topics: [],
    async run() {
      const pruned = await db.asSystem((q) => idempotency.prune(q, clock.now(), BATCH))
      return pruned === BATCH ? NEXT_BATCH_MS : null
    },
  }
}
