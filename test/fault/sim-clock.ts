import type { Clock } from '../../src/lib/clock.ts'
import type { Gates, Life } from './gates.ts'

/** A machine's wall clock, as far as it is wrong. */
export type WallClock = { offsetMs: number }

/** What time it is when a schedule begins: far enough from midnight and from the end of a month for most schedules. */
export const BEGINNING = new Date('2026-11-21T12:00:00Z')

/** The time as one life of a process sees it: sleeps are gates, the wall clock is its machine's. */
export function makeSimClock(gates: Gates, life: Life, wall: Readonly<WallClock>): Clock {
  return {
    now: () => new Date(BEGINNING.getTime() + gates.nowMs + wall.offsetMs),
    monotonicMs: () => gates.nowMs,
    sleep: (ms, signal) => gates.sleep(life, ms, signal),
  }
}
