import type { OrgId } from '../../domain/ids.ts'
import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { UnsealError } from '../../lib/seal.ts'
import type { Database } from '../../store/postgres/database.ts'
import * as idempotency from '../../store/requests/idempotency.ts'

/**
 * How long a claim lasts unless it is renewed, in milliseconds. After a process dies, a retry of its requests waits up
 * to this long.
 */
export const CLAIM_MS = 10_000
/** How often claims are renewed, in milliseconds. Two renewals may fail before a claim expires. */
const RENEW_EVERY_MS = 3_000

/** The maximum number of keys that are stored for an organization. Their usual replies take about 100 MB. */
export const KEYS_PER_ORG_MAX = 100_000
/** The maximum size of the stored replies of an organization. The largest reply has 4 MiB. */
export const REPLIES_PER_ORG_MAX_BYTES = 1024 ** 3
/**
 * How long a count of keys is cached, in milliseconds. Keys that an organization sends in that time may exceed the
 * limit.
 */
const COUNT_CACHE_MS = 10_000

/** The claims on Idempotency-Keys that this process holds. */
export type IdempotencyClaims = {
  /** Renews a claim regularly until the returned function is called. */
  keepRenewed(ref: idempotency.ClaimKey): () => void
  /** Whether one more key and reply may be stored for an organization. */
  isBelowKeyLimit(org: OrgId): Promise<boolean>
  /**
   * Logs that replies of earlier processes can't be unsealed. It logs this once, however many requests find such
   * replies.
   */
  logUnreadable(error: UnsealError): void
}

/**
 * Keeps the claims that a process holds. While there are any, one statement every `RENEW_EVERY_MS` renews all of them.
 */
export function makeIdempotencyClaims({ db, clock, log }: { db: Database; clock: Clock; log: Log }): IdempotencyClaims {
  const held = new Map<string, idempotency.ClaimKey>()
  const counts = new Map<OrgId, { readonly isBelow: boolean; readonly untilMs: number }>()
  let idle = new AbortController()
  let isLogged = false

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
        log.warn({ error }, 'could not renew the claims of idempotency keys; will retry')
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
      if (known !== undefined && known.untilMs > nowMs) return known.isBelow
      for (const [one, { untilMs }] of counts) if (untilMs <= nowMs) counts.delete(one)
      const { keys, bytes } = await db.asOrg(org, (q) => idempotency.countKeys(q, org, KEYS_PER_ORG_MAX))
      const isBelow = keys < KEYS_PER_ORG_MAX && bytes < REPLIES_PER_ORG_MAX_BYTES
      counts.set(org, { isBelow, untilMs: nowMs + COUNT_CACHE_MS })
      return isBelow
    },
    logUnreadable(error) {
      if (isLogged) return
      isLogged = true
      log.warn(
        { error },
        'stored replies of Idempotency-Keys were sealed with another sealing key: retries of those requests are refused ' +
          '(idempotency_reply_lost) until their keys expire; this is logged once',
      )
    },
  }
}
