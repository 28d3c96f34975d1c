import type { Clock } from '../../lib/clock.ts'

/** The maximum burst of a sandbox's output that is kept, in bytes as stored. */
const BURST_BYTES = 8 * 1024 * 1024
/** The maximum sustained rate of output that is kept. */
const BYTES_PER_SECOND = 1024 * 1024

/** A token bucket. Spent tokens refill over time. */
type TokenBucket = {
  /**
   * Whether tokens are left. If so, the caller may spend the size of one more record, even if that size exceeds the
   * remaining tokens.
   */
  hasTokens(): boolean
  spend(bytes: number): void
}

/** Creates a full bucket. */
export function makeTokenBucket(clock: Pick<Clock, 'monotonicMs'>): TokenBucket {
  let left = BURST_BYTES
  let refilledMs = clock.monotonicMs()
  return {
    hasTokens() {
      if (left < BURST_BYTES) {
        const nowMs = clock.monotonicMs()
        left = Math.min(BURST_BYTES, left + ((nowMs - refilledMs) * BYTES_PER_SECOND) / 1000)
        refilledMs = nowMs
      }
      return left > 0
    },
    spend(bytes) {
      if (left === BURST_BYTES) refilledMs = clock.monotonicMs()
      left -= bytes
    },
  }
}
