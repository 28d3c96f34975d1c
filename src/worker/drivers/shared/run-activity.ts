import type { RunId } from '../../../domain/ids.ts'
import { interruptibleSleep, type Clock } from '../../../lib/clock.ts'

/**
 * The time of each run's last use. It is kept in memory, so idle times start again when the worker restarts. The run's
 * channels decide which messages count as a use. A run is also in use while a process that a client started runs in it.
 */
export type RunActivity = {
  /** Starts the idle time of a run, unless it is tracked already. */
  track(run: RunId, timeoutSecs: number): void
  /** Records a use of a run: its idle time starts again. */
  touch(run: RunId): void
  /**
   * Marks a run as in use until the returned function is called. Calling that function counts as a use and may be
   * repeated.
   */
  hold(run: RunId): () => void
  forget(run: RunId): void
  /** Whether the last use is at least the run's timeout ago. An untracked run is never idle. */
  isIdle(run: RunId): boolean
  close(): Promise<void>
}

/** The functions by which a channel records the use of its run. See `touch` and `hold` of `RunActivity`. */
export type RunUsage = { readonly touch: () => void; readonly hold: () => () => void }

type TrackedRun = {
  readonly timeoutMs: number
  lastMs: number
  holds: number
  /** Whether `onIdle` was called since the run's last use. */
  isReported: boolean
}

/** The longest sleep between two checks. Node's timers allow at most 2^31 ms. */
const LONGEST_MS = 3_600_000

/** Tracks the activity of runs. Calls `onIdle` when a run becomes idle. */
export function makeRunActivity(clock: Clock, onIdle: () => void): RunActivity {
  const runs = new Map<RunId, TrackedRun>()
  const closed = new AbortController()
  let rescheduling = new AbortController()

  /** Calls `onIdle` for runs that have become idle, and returns the milliseconds until the next run becomes idle. */
  const reportDue = (): number => {
    const nowMs = clock.monotonicMs()
    let restMs = LONGEST_MS
    let isDue = false
    for (const run of runs.values()) {
      if (run.isReported || run.holds > 0) continue
      const runRestMs = run.lastMs + run.timeoutMs - nowMs
      if (runRestMs > 0) restMs = Math.min(restMs, runRestMs)
      else {
        run.isReported = true
        isDue = true
      }
    }
    if (isDue) onIdle()
    return restMs
  }
  const reschedule = (): void => {
    rescheduling.abort()
  }
  const watch = async (): Promise<void> => {
    while (!closed.signal.aborted) {
      rescheduling = new AbortController()
      await interruptibleSleep(clock, reportDue(), rescheduling.signal, closed.signal)
    }
  }
  // A use only postpones the time at which a run becomes idle, so the next check need not be rescheduled. There may be
  // thousands of uses in a second.
  const use = (run: TrackedRun): void => {
    run.lastMs = clock.monotonicMs()
    if (run.isReported) reschedule()
    run.isReported = false
  }
  const watching = watch()

  return {
    track(run, timeoutSecs) {
      if (runs.has(run)) return
      runs.set(run, { timeoutMs: timeoutSecs * 1000, lastMs: clock.monotonicMs(), holds: 0, isReported: false })
      reschedule()
    },
    touch(id) {
      const run = runs.get(id)
      if (run !== undefined) use(run)
    },
    hold(id) {
      const run = runs.get(id)
      if (run === undefined) return () => undefined
      let isHeld = true
      run.holds += 1
      return () => {
        if (!isHeld) return
        isHeld = false
        run.holds -= 1
        use(run)
        reschedule()
      }
    },
    forget(run) {
      runs.delete(run)
    },
    isIdle(id) {
      const run = runs.get(id)
      return run !== undefined && run.holds === 0 && clock.monotonicMs() - run.lastMs >= run.timeoutMs
    },
    async close() {
      closed.abort()
      await watching
    },
  }
}
