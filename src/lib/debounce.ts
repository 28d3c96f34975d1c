import { interruptibleSleep, type Clock } from './clock.ts'

export type DebounceOptions = {
  readonly clock: Clock
  /** How long nobody must have asked. */
  readonly delayMs: number
  /** At the latest this long after the first who asked. */
  readonly maxWaitMs: number
  /** Must not throw. */
  readonly work: () => void
}

/** Work that waits until it disturbs nobody. */
export type Debounced = {
  /** Lets the work be done once, soon. */
  schedule(): void
  /** Forgets what was asked; later asks do nothing. */
  close(): void
}

/** See `Debounced`. */
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

  return {
    schedule() {
      const nowMs = clock.monotonicMs()
      if (!isAsked) latestMs = nowMs + maxWaitMs
      dueMs = Math.min(nowMs + delayMs, latestMs)
      if (isAsked || closed.signal.aborted) return
      isAsked = true
      void wait() // never rejects: neither the sleep nor the work does
    },
    close() {
      closed.abort(new Error('closed'))
    },
  }
}
