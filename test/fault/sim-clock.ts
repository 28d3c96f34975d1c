import type { Clock } from '../../src/lib/clock.ts'
import type { Gates, Incarnation } from './gates.ts'

/** By how much the wall clock of a machine is wrong. */
export type WallClock = { offsetMs: number }

/** The time at the start of every schedule: most schedules end before midnight and before the end of the month. */
export const START_TIME = new Date('2026-11-21T12:00:00Z')

/** The clock of one process: its sleeps are gates, its wall clock is that of its machine. */
export function makeSimClock(gates: Gates, incarnation: Incarnation, wall: Readonly<WallClock>): Clock {
  return {
    now: () => new Date(START_TIME.getTime() + gates.nowMs + wall.offsetMs),
    monotonicMs: () => gates.nowMs,
    sleep: (ms, signal) => gates.sleep(incarnation, ms, signal),
  }
}
