import type { Clock } from '../../src/lib/clock.ts'

/** A clock that only the test advances. */
export type TestClock = Clock & {
  /** Advances the clock, and resolves the sleeps that are due, in the order of their times. */
  advance(ms: number): void
  /** The number of sleeps that are not over. */
  readonly sleepers: number
}

/** Makes a clock that stands at `start`. */
export function makeTestClock(start = new Date('2026-11-21T12:00:00Z')): TestClock {
  type Sleeper = { readonly atMs: number; readonly wake: () => void }
  let nowMs = 0
  const sleepers = new Set<Sleeper>()
  return {
    now: () => new Date(start.getTime() + nowMs),
    monotonicMs: () => nowMs,
    sleep: (ms, signal) =>
      new Promise((resolve, reject) => {
        signal?.throwIfAborted()
        const onAbort = (): void => {
          sleepers.delete(sleeper)
          reject(signal?.reason instanceof Error ? signal.reason : new Error('aborted'))
        }
        const sleeper: Sleeper = {
          atMs: nowMs + ms,
          wake: () => {
            signal?.removeEventListener('abort', onAbort)
            resolve()
          },
        }
        sleepers.add(sleeper)
        signal?.addEventListener('abort', onAbort, { once: true })
      }),
    advance(ms) {
      nowMs += ms
      const due = [...sleepers].filter(({ atMs }) => atMs <= nowMs).sort((a, b) => a.atMs - b.atMs)
      for (const sleeper of due) {
        sleepers.delete(sleeper)
        sleeper.wake()
      }
    },
    get sleepers() {
      return sleepers.size
    },
  }
}
