/** What lies in tables beyond its time, and nobody asks for any more, is forgotten: batch after batch. */
import type { BaseDeps } from '../control/deps.ts'
import type { Queryable } from '../store/postgres/database.ts'
import * as idempotency from '../store/requests/idempotency.ts'
import * as streamTickets from '../store/streams/stream-tickets.ts'
import * as workerTokens from '../store/workers/worker-tokens.ts'
import type { Loop } from './loop.ts'

type PruneDeps = Pick<BaseDeps, 'db' | 'clock'>

/** Forgets Idempotency-Keys whose time is over; a key that is used before that is a new one all the same. */
export function pruneIdempotencyKeys(deps: PruneDeps): Loop {
  return makePruneLoop(deps, { name: 'prune-keys', periodMs: 60_000, batch: 5_000, prune: idempotency.pruneExpired })
}

/** Removes tickets for streams whose time is over: those of a process that died. */
export function pruneStreamTickets(deps: PruneDeps): Loop {
  return makePruneLoop(deps, {
    name: 'sweep-tickets',
    periodMs: 30_000,
    batch: 1_000,
    prune: streamTickets.removeExpired,
  })
}

/** How long a join token that was used or expired is known: a machine whose answer was lost gets it again meanwhile. */
const TOKEN_KEPT_MS = 24 * 3_600_000

/** Forgets join tokens a day after they were used or expired. */
export function pruneWorkerTokens(deps: PruneDeps): Loop {
  return makePruneLoop(deps, {
    name: 'prune-worker-tokens',
    periodMs: 3_600_000,
    batch: 1_000,
    prune: (q, now, limit) => workerTokens.prune(q, new Date(now.getTime() - TOKEN_KEPT_MS), limit),
  })
}

/** How long after a full batch the next is due, in milliseconds. */
const NEXT_BATCH_MS = 100

type Pruning = Pick<Loop, 'name' | 'periodMs'> & {
  /** The most rows that one statement removes. */
  readonly batch: number
  /** Removes what is over by a time, `limit` rows at most; answers how many. */
  readonly prune: (q: Queryable, now: Date, limit: number) => Promise<number>
}

function makePruneLoop({ db, clock }: PruneDeps, { name, periodMs, batch, prune }: Pruning): Loop {
  const run = async (): Promise<number | null> => {
    const pruned = await db.asSystem((q) => prune(q, clock.now(), batch))
    return pruned === batch ? NEXT_BATCH_MS : null
  }
  return { name, periodMs, topics: [], run }
}
