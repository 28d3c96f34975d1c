/**
 * Wall-clock time that does not jump. A program that subtracts two readings of the machine's clock bills a day when
 * somebody sets that clock a day ahead. Steady time follows the monotonic clock instead. See
 * docs/decisions/0040-clocks.md.
 */

/** The clocks of the machine, in milliseconds. */
export type MachineClocks = {
  /** Time since 1970, which jumps when the clock is set. */
  readonly wallMs: () => number
  /** A clock that never jumps. It stands still while the machine sleeps. */
  readonly monotonicMs: () => number
  /** The time since the machine's boot, including the time that it slept. */
  readonly sinceBootMs: () => number
}

export type SteadyTime = {
  /** The steady time since 1970, in milliseconds. */
  readonly nowMs: () => number
  /** How far the wall clock is ahead of steady time, in milliseconds. 0: it has not jumped. */
  readonly wallAheadMs: () => number
}

/** A larger change of the wall clock between two readings is a jump. Time servers correct smaller errors gradually. */
export const JUMP_MS = 1_000
/** Whether the machine slept is read at most this often while the wall clock is away from steady time. */
const SLEEP_CHECK_MS = 1_000

/**
 * Starts at the wall clock's time. Follows small corrections of the wall clock, and counts the time that the machine
 * sleeps. Ignores larger changes for as long as the process lives.
 */
export function makeSteadyTime({ wallMs, monotonicMs, sinceBootMs }: MachineClocks): SteadyTime {
  let startMs = wallMs() - monotonicMs()
  let bootMs = sinceBootMs() - monotonicMs()
  let checkedMs = Number.NEGATIVE_INFINITY

  const countSleep = (monotonic: number): void => {
    if (monotonic - checkedMs < SLEEP_CHECK_MS) return
    checkedMs = monotonic
    const sleptMs = sinceBootMs() - monotonic - bootMs
    if (sleptMs <= JUMP_MS) return
    startMs += sleptMs
    bootMs += sleptMs
  }
  const read = (): { readonly nowMs: number; readonly aheadMs: number } => {
    const monotonic = monotonicMs()
    const wall = wallMs()
    if (Math.abs(wall - monotonic - startMs) > JUMP_MS) countSleep(monotonic)
    const aheadMs = wall - monotonic - startMs
    if (Math.abs(aheadMs) > JUMP_MS) return { nowMs: startMs + monotonic, aheadMs }
    startMs += aheadMs
    return { nowMs: wall, aheadMs: 0 }
  }
  return { nowMs: () => read().nowMs, wallAheadMs: () => read().aheadMs }
}
