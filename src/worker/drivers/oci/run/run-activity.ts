import type { RunId } from '../../../../domain/ids.ts'
import { interruptibleSleep, type Clock } from '../../../../lib/clock.ts'

/**
 * The time of each run's last use. It is kept in memory, so idle times start again when the worker restarts. The command
 * channel decides what counts as a use. A run is in use while a process that a client started runs in it.
 */
export type RunActivity = {
  /** Starts the idle time of a run, unless it is tracked already. */
  track(run: RunId, timeoutSecs: number): void
  /** Records a use of a run: its idle time starts again. */
  touch(run: RunId): void
  /** Marks a run as in use until the returned function is called. That call counts as a use and may be repeated. */
  hold(run: RunId): () => void
  forget(run: RunId): void
  /** Whether the last use is at least the run's timeout ago. An untracked run is never idle. */
  isIdle(run: RunId): boolean
  close(): Promise<void>
}

/** Records the use of one run, for the channel that serves it. */
export type RunUsage = { readonly touch: () => void; readonly hold: () => () => void }

type TrackedRun = {
  readonly timeoutMs: number
  lastMs: number
  holds: number
  /** Whether `onIdle` was called since the run's last use. */
  isReported: boolean
}

/** The longest sleep. Node's timers allow at most 2^31 ms. */
const LONGEST_MS = 3_600_000

/** Tracks the activity of runs and calls `onIdle` at the moment at which a run becomes idle. */
export function makeRunActivity(clock: Clock, onIdle: () => void): RunActivity {
  const runs = new Map<RunId, TrackedRun>()
  const closed = new AbortController()
  let rescheduling = new AbortController()

  /** Reports the runs that are idle now, and returns the milliseconds until the next one becomes idle. */
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
      await interruptibleSleep(clock, reportDue(), AbortSignal.any([rescheduling.signal, closed.signal]))
    }
  }
  // A use never makes a run idle earlier, so it needs no rescheduling. There may be thousands of uses in a second.
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
