/** Time as an argument: production gives `systemClock`, tests give a clock that they turn themselves. */
export interface Clock {
  /** Wall time, for what is stored or shown. It may step. */
  now(): Date
  /** Milliseconds that only grow, for measuring how long something took. */
  monotonicMs(): number
  /** Resolves after `ms`; rejects with the signal's reason when `signal` is aborted first. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>
}

/** The machine's own clock; the only place of this program that asks it for the time. */
export const systemClock: Clock = {
  now: () => new Date(),
  monotonicMs: () => performance.now(),
  sleep: (ms, signal) =>
    new Promise<void>((resolve, reject) => {
      if (signal?.aborted === true) {
        reject(abortReason(signal))
        return
      }
      const onAbort = (): void => {
        clearTimeout(timer)
        reject(abortReason(signal))
      }
      const timer = setTimeout(() => {
        signal?.removeEventListener('abort', onAbort)
        resolve()
      }, ms)
      signal?.addEventListener('abort', onAbort, { once: true })
    }),
}

/**
 * Why a sleep ends early that something woke. Aborting without a reason makes an error each time, with its stack: 30 us,
 * some forty times in each start of a sandbox (2026-11).
 */
export const NOTIFIED = new Error('woken')

/** Sleeps until the time is over or the signal comes, whichever is first; resolves either way. */
export async function interruptibleSleep(clock: Clock, ms: number, signal: AbortSignal): Promise<void> {
  try {
    await clock.sleep(ms, signal)
  } catch (error) {
    if (!signal.aborted) throw error
  }
}

function abortReason(signal: AbortSignal | undefined): Error {
  return signal?.reason instanceof Error ? signal.reason : new Error('aborted')
}
