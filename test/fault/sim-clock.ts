import type { Clock } from '../../src/lib/clock.ts'
import type { Gates, Incarnation } from './gates.ts'

/** The error of a machine's wall clock: its time minus the schedule's time, in milliseconds. */
export type WallClock = { offsetMs: number }

/**
 * The time at the start of every schedule. It is noon, so that most schedules end before midnight and the month's end.
 */
export const START_TIME = new Date('2026-11-21T12:00:00Z')

/** The clock of one process: its sleeps are gates, its wall clock is that of its machine. */
export function makeSimClock(gates: Gates, incarnation: Incarnation, wall: Readonly<WallClock>): Clock {
  return {
    now: () => new Date(START_TIME.getTime() + gates.nowMs + wall.offsetMs),
    monotonicMs: () => gates.nowMs,
    sleep: (ms, signal) => gates.sleep(incarnation, ms, signal),
  }
}
