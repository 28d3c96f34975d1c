import type { MeasuredPhase, StartPhase } from '../../../domain/sandboxes/start-phases.ts'
import type { Clock } from '../../../lib/clock.ts'

/** Measures the phases of one start. */
export type StartStopwatch = {
  /** Measures a phase from now until `work` has ended, and passes its result on. */
  measure<T>(phase: StartPhase, work: Promise<T>): Promise<T>
  /** The phases that have ended, in the order in which they began. */
  phases(): readonly MeasuredPhase[]
  /** How long ago the start began, in milliseconds. */
  ageMs(): number
}

/** Begins to measure a start. Of the phases that fail, the first one is said to have ended the start. */
export function makeStartStopwatch(clock: Pick<Clock, 'monotonicMs'>): StartStopwatch {
  const beganMs = clock.monotonicMs()
  const ended: MeasuredPhase[] = []
  let hasFailed = false
  return {
    async measure(phase, work) {
      const offset = clock.monotonicMs() - beganMs
      let failure = {}
      try {
        return await work
      } catch (error) {
        if (!hasFailed) failure = { has_failed: true }
        hasFailed = true
        throw error
      } finally {
        const duration = clock.monotonicMs() - beganMs - offset
        ended.push({ phase, offset_ms: toTenths(offset), duration_ms: toTenths(duration), ...failure })
      }
    },
    phases: () => ended.toSorted((one, other) => one.offset_ms - other.offset_ms),
    ageMs: () => toTenths(clock.monotonicMs() - beganMs),
  }
}

function toTenths(ms: number): number {
  return Math.max(0, Math.round(ms * 10) / 10)
}
