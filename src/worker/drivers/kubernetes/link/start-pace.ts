import type { Clock } from '../../../../lib/clock.ts'

/** When to try to reach a Pod that starts. */
export type StartPace = {
  /** Begins the attempts of a Pod that has a node. */
  begin(): StartAttempts
}
export type StartAttempts = {
  /** How long to wait before the next attempt, in milliseconds. */
  nextPauseMs(): number
  /** Notes that an attempt begins. */
  began(): void
  /** Notes that the last attempt reached the Pod. */
  reached(): void
}

/** So many starts are remembered. */
const RECENT = 8
/** The first attempt comes at this part of the time after which the earliest successful attempt of them began. */
const EARLY = 0.9
/**
 * The same if the last start's first attempt was successful, which says nothing about how much earlier one would have
 * been. By 0.9 alone, the pace comes down slowly after a start that took long, such as the first one, which pulls the
 * image.
 */
const EARLIER = 0.6
const FIRST_PAUSE_MS = 25
const GROWTH = 1.15
/** The watch says within a second that a container runs, so later attempts need not be close together. */
const LONGEST_PAUSE_MS = 500

/**
 * Makes a pace that follows what recent starts took. The kubelet reports a container up to a second after it runs, and only an attempt
 * finds out earlier. Each attempt is a request to the API server and one to the kubelet.
 */
export function makeStartPace(clock: Pick<Clock, 'monotonicMs'>): StartPace {
  let recent: readonly number[] = []
  let wasFirst = false
  return {
    begin() {
      const fromMs = clock.monotonicMs()
      let nextMs = recent.length === 0 ? 0 : (wasFirst ? EARLIER : EARLY) * Math.min(...recent)
      let laterMs = FIRST_PAUSE_MS
      let lastMs = 0
      let count = 0
      return {
        nextPauseMs() {
          const pauseMs = nextMs
          nextMs = laterMs
          laterMs = Math.min(laterMs * GROWTH, LONGEST_PAUSE_MS)
          return pauseMs
        },
        began() {
          lastMs = clock.monotonicMs() - fromMs
          count += 1
        },
        reached() {
          recent = [lastMs, ...recent].slice(0, RECENT)
          wasFirst = count === 1
        },
      }
    },
  }
}
