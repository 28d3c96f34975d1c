import { interruptibleSleep, type Clock } from '../clock.ts'

export type DebounceOptions = {
  readonly clock: Clock
  /** The delay of the work after the last call, in milliseconds. */
  readonly delayMs: number
  /** The longest delay of the work after the first call, in milliseconds. */
  readonly maxWaitMs: number
  /** Must not throw. */
  readonly work: () => void
}

/** Work that runs once no call of `schedule` has come for a while. */
export type Debounced = {
  /** Schedules one run of the work, or delays the one that is scheduled. */
  schedule(): void
  /** Delays a run that is scheduled, as `schedule` does. Schedules none. */
  postpone(): void
  /** Cancels a scheduled run. Later calls of `schedule` do nothing. */
  close(): void
}

/** Delays `work` until `delayMs` after the last call of `schedule`, but at most until `maxWaitMs` after the first. */
export function debounce({ clock, delayMs, maxWaitMs, work }: DebounceOptions): Debounced {
  const closed = new AbortController()
  let isAsked = false
  let latestMs = 0
  let dueMs = 0

  async function wait(): Promise<void> {
    for (;;) {
      const restMs = dueMs - clock.monotonicMs()
      if (restMs <= 0 || closed.signal.aborted) break
      await interruptibleSleep(clock, restMs, closed.signal)
    }
    isAsked = false
    if (!closed.signal.aborted) work()
  }

  const delay = (): void => {
    dueMs = Math.min(clock.monotonicMs() + delayMs, latestMs)
  }

  return {
    postpone: delay,
    schedule() {
      if (!isAsked) latestMs = clock.monotonicMs() + maxWaitMs
      delay()
      if (isAsked || closed.signal.aborted) return
      isAsked = true
      void wait() // never rejects: neither the sleep nor the work does
    },
    close() {
      closed.abort(new Error('closed'))
    },
  }
}
