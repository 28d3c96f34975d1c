/** Loops that delete expired rows, batch after batch. */
import type { BaseDeps } from '../control/deps.ts'
import { SESSION_IDLE_MS } from '../domain/sign-in/session.ts'
import type { Queryable } from '../store/postgres/database.ts'
import * as idempotency from '../store/requests/idempotency.ts'
import * as links from '../store/sign-in/links.ts'
import * as sessions from '../store/sign-in/sessions.ts'
import * as streamTickets from '../store/streams/stream-tickets.ts'
import * as joinTokens from '../store/workers/join-tokens.ts'
import type { Loop } from './loop.ts'

type PruneDeps = Pick<BaseDeps, 'db' | 'clock'>

/** Deletes expired Idempotency-Keys. An expired key counts as new even before it is deleted. */
export function makePruneIdempotencyKeysLoop(deps: PruneDeps): Loop {
  return makePruneLoop(deps, { name: 'prune-keys', periodMs: 60_000, batch: 5_000, prune: idempotency.pruneExpired })
}

/** Deletes expired stream tickets. Processes that die leave them behind. */
export function makePruneStreamTicketsLoop(deps: PruneDeps): Loop {
  return makePruneLoop(deps, {
    name: 'sweep-tickets',
    periodMs: 30_000,
    batch: 1_000,
    prune: streamTickets.removeExpired,
  })
}

/**
 * How long a used or expired join token is kept, in milliseconds. In that time, a machine that did not receive the
 * answer to its join can repeat the join.
 */
const TOKEN_KEPT_MS = 24 * 3_600_000

/** Deletes join tokens a day after they were used or expired. */
export function makePruneJoinTokensLoop(deps: PruneDeps): Loop {
  return makePruneLoop(deps, {
    name: 'prune-join-tokens',
    periodMs: 3_600_000,
    batch: 1_000,
    prune: (q, now, limit) => joinTokens.prune(q, new Date(now.getTime() - TOKEN_KEPT_MS), limit),
  })
}

/** Deletes sessions and sign-in links that have expired. They open nothing even before. */
export function makePruneSessionsLoop(deps: PruneDeps): Loop {
  return makePruneLoop(deps, {
    name: 'prune-sessions',
    periodMs: 3_600_000,
    batch: 1_000,
    prune: async (q, now, limit) => {
      const seenSince = new Date(now.getTime() - SESSION_IDLE_MS)
      return Math.max(await sessions.prune(q, { now, seenSince, limit }), await links.prune(q, now, limit))
    },
  })
}

/** The pause after a full batch, in milliseconds. */
const NEXT_BATCH_MS = 100

type Pruning = Pick<Loop, 'name' | 'periodMs'> & {
  /** The maximum number of rows that one statement deletes. */
  readonly batch: number
  /** Deletes at most `limit` rows that expired by a given time, and resolves with the number of deleted rows. */
  readonly prune: (q: Queryable, now: Date, limit: number) => Promise<number>
}

function makePruneLoop({ db, clock }: PruneDeps, { name, periodMs, batch, prune }: Pruning): Loop {
  const run = async (): Promise<number | null> => {
    const pruned = await db.asSystem((q) => prune(q, clock.now(), batch))
    return pruned === batch ? NEXT_BATCH_MS : null
  }
  return { name, periodMs, topics: [], run }
}
