import type { Clock } from '../../lib/clock.ts'

/** The burst of a sandbox's output that may be kept, in bytes as stored. */
const BURST_BYTES = 8 * 1024 * 1024
/** The rate of output that may be kept in the long run. */
const BYTES_PER_SECOND = 1024 * 1024

/** A token bucket: what is spent refills over time. */
type TokenBucket = {
  /** Whether tokens are left. If so, the next record may be spent as a whole, however large it is. */
  hasTokens(): boolean
  spend(bytes: number): void
}

/** Makes a full bucket. */
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
