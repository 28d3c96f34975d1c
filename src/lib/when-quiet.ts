import { interruptibleSleep, type Clock } from './clock.ts'

export type WhenQuietOptions = {
  readonly clock: Clock
  /** How long nobody must have asked. */
  readonly quietMs: number
  /** At the latest this long after the first who asked. */
  readonly limitMs: number
  /** Must not throw. */
  readonly work: () => void
}

/** Work that waits until it disturbs nobody. */
export type WhenQuiet = {
  /** Lets the work be done once, soon. */
  ask(): void
  /** Forgets what was asked; later asks do nothing. */
  close(): void
}

/** See `WhenQuiet`. */
export function makeWhenQuiet({ clock, quietMs, limitMs, work }: WhenQuietOptions): WhenQuiet {
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
    ask() {
      const nowMs = clock.monotonicMs()
      if (!isAsked) latestMs = nowMs + limitMs
      dueMs = Math.min(nowMs + quietMs, latestMs)
      if (isAsked || closed.signal.aborted) return
      isAsked = true
      void wait() // never rejects: neither the sleep nor the work does
    },
    close() {
      closed.abort(new Error('closed'))
    },
  }
}
