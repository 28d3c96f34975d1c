import type { Clock } from '../clock.ts'

export type LimitedReadOptions<T> = {
  readonly clock: Clock
  readonly read: () => Promise<T>
  /** How long a result serves all callers, in milliseconds. */
  readonly freshMs: number
  /** How long a caller waits at most, in milliseconds. */
  readonly limitMs: number
  /** Called when a read fails, and each time that callers gave up on it together. */
  readonly onFailure: (error: unknown) => void
}

/**
 * Makes a function that returns what `read` returns, or null if it fails or takes longer than `limitMs`. Concurrent
 * callers share one read, and later ones its result for `freshMs`. A read beyond the limit goes on, and callers join it
 * instead of starting another one. So callers never have more than one read running.
 */
export function makeLimitedRead<T>(options: LimitedReadOptions<T>): () => Promise<T | null> {
  const { clock, freshMs, limitMs } = options
  let latest: { readonly value: T; readonly atMs: number } | null = null
  let running: Promise<T | null> | null = null
  let waiting: Promise<T | null> | null = null

  async function start(): Promise<T | null> {
    try {
      const value = await options.read()
      latest = { value, atMs: clock.monotonicMs() }
      return value
    } catch (error) {
      options.onFailure(error)
      return null
    } finally {
      running = null
    }
  }

  async function limit(signal: AbortSignal): Promise<null> {
    try {
      await clock.sleep(limitMs, signal)
      options.onFailure(new Error(`no answer within ${String(limitMs)} ms`))
    } catch (error) {
      if (!signal.aborted) throw error
    }
    return null
  }

  async function wait(): Promise<T | null> {
    running ??= start()
    const answered = new AbortController()
    try {
      return await Promise.race([running, limit(answered.signal)])
    } finally {
      waiting = null
      answered.abort()
    }
  }

  return () => {
    if (latest !== null && clock.monotonicMs() - latest.atMs < freshMs) return Promise.resolve(latest.value)
    waiting ??= wait()
    return waiting
  }
}
