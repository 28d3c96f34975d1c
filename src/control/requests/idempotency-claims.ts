import type { OrgId } from '../../domain/ids.ts'
import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { UnsealError } from '../../lib/seal.ts'
import type { Database } from '../../store/postgres/database.ts'
import * as idempotency from '../../store/requests/idempotency.ts'

/** How long a claim lasts unless it is renewed: a retry of what a dead process served begins after that. */
export const CLAIM_MS = 10_000
/** So that two renewals may fail. */
const RENEW_EVERY_MS = 3_000

/** The most keys of an organization that are remembered, about 100 MB of its replies. */
export const KEYS_PER_ORG_MAX = 100_000
/** How long a count is believed: meanwhile an organization may pass the limit by what it sends in that time. */
const COUNT_CACHE_MS = 10_000

/** The claims of Idempotency-Keys that this process holds. */
export type IdempotencyClaims = {
  /** Keeps a claim until the answer is called. */
  keepRenewed(ref: idempotency.ClaimKey): () => void
  /** Whether an organization may have one more key remembered. */
  isBelowKeyLimit(org: OrgId): Promise<boolean>
  /** Says in the log that what earlier processes remembered can't be opened: once, however many requests meet it. */
  logUnreadable(error: UnsealError): void
}

/** Renews what is held, all together, as long as something is. */
export function makeIdempotencyClaims({ db, clock, log }: { db: Database; clock: Clock; log: Log }): IdempotencyClaims {
  const held = new Map<string, idempotency.ClaimKey>()
  const counts = new Map<OrgId, { readonly count: number; readonly untilMs: number }>()
  let idle = new AbortController()
  let isLossTold = false

  async function renewWhileHeld(): Promise<void> {
    idle = new AbortController()
    const { signal } = idle
    while (!signal.aborted) {
      await interruptibleSleep(clock, RENEW_EVERY_MS, signal)
      if (signal.aborted) return
      try {
        const until = new Date(clock.now().getTime() + CLAIM_MS)
        await db.commitStatement('system', idempotency.renewClaims([...held.values()], until))
      } catch (error) {
        log.warn({ error }, 'claims of idempotency keys could not be renewed; it is tried again')
      }
    }
  }

  return {
    keepRenewed(ref) {
      held.set(ref.claim, ref)
      if (held.size === 1) void renewWhileHeld() // it never rejects: its failures are logged
      return () => {
        if (held.delete(ref.claim) && held.size === 0) idle.abort(new Error('no claim is held'))
      }
    },
    async isBelowKeyLimit(org) {
      const nowMs = clock.monotonicMs()
      const known = counts.get(org)
      if (known !== undefined && known.untilMs > nowMs) return known.count < KEYS_PER_ORG_MAX
      for (const [one, { untilMs }] of counts) if (untilMs <= nowMs) counts.delete(one)
      const count = await db.asOrg(org, (q) => idempotency.countKeys(q, org, KEYS_PER_ORG_MAX))
      counts.set(org, { count, untilMs: nowMs + COUNT_CACHE_MS })
      return count < KEYS_PER_ORG_MAX
    },
    logUnreadable(error) {
      if (isLossTold) return
      isLossTold = true
      log.warn(
        { error },
        'replies that are remembered for Idempotency-Keys were sealed with another sealing key: such requests are refused ' +
          '(idempotency_reply_lost) for 24 hours after they were first made; this is said once',
      )
    },
  }
}
