import type { Clock } from '../../lib/clock.ts'

/** How much of a sandbox's output may be kept at once, in bytes as they are stored. */
const BURST_BYTES = 8 * 1024 * 1024
/** How much may be kept in the long run. */
const BYTES_PER_SECOND = 1024 * 1024

/** A token bucket: what is spent comes back with time. */
type TokenBucket = {
  /** Whether anything is left; then the next piece may be spent whole, however large. */
  hasTokens(): boolean
  spend(bytes: number): void
}

/** A full one. */
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
