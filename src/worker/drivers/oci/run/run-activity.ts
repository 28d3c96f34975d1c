import type { RunId } from '../../../../domain/ids.ts'
import { interruptibleSleep, type Clock } from '../../../../lib/clock.ts'

/**
 * When each run was last used. Kept in memory: after a restart of the worker the time starts anew. What counts as use is
 * the channel's to say (agent protocol, section 10); a run in which a process was asked for and is not over is in use.
 */
export type RunActivity = {
  /** Starts the time of a run, unless it is followed already. */
  track(run: RunId, timeoutSecs: number): void
  touch(run: RunId): void
  /** Keeps a run in use until the answer is called, which is a use itself and may be repeated. */
  hold(run: RunId): () => void
  forget(run: RunId): void
  /** Whether the last use is as long ago as the run's timeout; a run that is not followed is never idle. */
  isIdle(run: RunId): boolean
  close(): Promise<void>
}

/** The use of one run, for who serves it. */
export type RunUsage = { readonly touch: () => void; readonly hold: () => () => void }

type TrackedRun = {
  readonly timeoutMs: number
  lastMs: number
  holds: number
  /** Whether it was told of since its last use. */
  isReported: boolean
}

/** The longest that the alarm sleeps, in milliseconds: timers take no more than 2^31. */
const LONGEST_MS = 3_600_000

/** Activity by a clock. `onIdle` is called as runs become idle, at the moment that their time is over. */
export function makeRunActivity(clock: Clock, onIdle: () => void): RunActivity {
  const runs = new Map<RunId, TrackedRun>()
  const closed = new AbortController()
  let rung = new AbortController()

  /** How long until the next run becomes idle; those that are idle now are told of. */
  const tellDue = (): number => {
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
  const ring = (): void => {
    rung.abort()
  }
  const watch = async (): Promise<void> => {
    while (!closed.signal.aborted) {
      rung = new AbortController()
      await interruptibleSleep(clock, tellDue(), AbortSignal.any([rung.signal, closed.signal]))
    }
  }
  // A use never brings the next moment forward, so it does not wake the alarm: there may be thousands in a second.
  const use = (run: TrackedRun): void => {
    run.lastMs = clock.monotonicMs()
    if (run.isReported) ring()
    run.isReported = false
  }
  const watching = watch()

  return {
    track(run, timeoutSecs) {
      if (runs.has(run)) return
      runs.set(run, { timeoutMs: timeoutSecs * 1000, lastMs: clock.monotonicMs(), holds: 0, isReported: false })
      ring()
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
        ring()
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
