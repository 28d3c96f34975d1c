import { Problem } from '../../domain/problem.ts'
import type { Queryable } from '../../store/postgres/database.ts'

/**
 * What lets a use case do its work once, however often its request is tried under one Idempotency-Key. A try that ended
 * without an answer may have done all, or nothing: what a request makes bears `id`, or a note of it is committed with it.
 */
export type IdempotentAttempt = {
  /** Chosen before the first try: the id of what the request makes. */
  readonly id: string
  /** Whether a try was begun before this one. */
  readonly isRetry: boolean
  /** What an earlier try noted; null: it noted nothing. */
  readonly noted: string | null
  /** Notes what is done, in its transaction. Rejects with `idempotency_key_in_use` when another try has taken over. */
  note(tx: Queryable, what: string): Promise<void>
}

/** The refusal of a retry whose first try was done, or may have been, and of which nothing is left to answer with. */
export function idempotencyReplyLost(why: string): Problem {
  return new Problem('idempotency_reply_lost', {
    message: `the reply of this request was lost: ${why}`,
    details: { field: 'idempotency-key', seen: why, accepted: 'another key, once you have looked what was done' },
  })
}
