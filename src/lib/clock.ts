import { existsSync, readFileSync } from 'node:fs'
import { joinSignals } from './join-signals.ts'
import { makeSteadyTime } from './steady-time.ts'

/** Access to time. Production uses `systemClock`. Tests use a clock that they control. */
export interface Clock {
  /**
   * The time, for what is stored or shown. It does not jump while a process lives, but two processes may disagree about
   * it.
   */
  now(): Date
  /** Milliseconds that never go back, for measuring durations. */
  monotonicMs(): number
  /** Resolves after `ms`. Rejects with the signal's reason when `signal` aborts first. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>
}

const UPTIME = '/proc/uptime'

const steady = makeSteadyTime({
  wallMs: () => Date.now(),
  monotonicMs: () => performance.now(),
  sinceBootMs: () => (existsSync(UPTIME) ? sinceBootMs() : performance.now()), // clients also run where Linux doesn't
})

/** The machine's clock. No other code in this program reads the time. */
export const systemClock: Clock = {
  now: () => new Date(steady.nowMs()),
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

/** How far the wall clock has jumped ahead of `systemClock` since this process started, in milliseconds. */
export function wallAheadMs(): number {
  return steady.wallAheadMs()
}

/**
 * The time since the machine's boot (CLOCK_BOOTTIME) in milliseconds, in steps of 10 ms, from proc_uptime(5). It continues
 * while a process is stopped and while the machine sleeps, and all processes read the same time.
 */
export function sinceBootMs(): number {
  return Math.floor(Number(readFileSync(UPTIME, 'utf8').split(' ')[0]) * 1000)
}

/**
 * The abort reason of a sleep that a notification ends early. It is created once and shared, because an abort without a
 * reason creates an error with a stack. Each such error takes 30 us, and a start of a sandbox would create about forty
 * (2026-11).
 */
export const NOTIFIED = new Error('notified')

/** Sleeps for `ms`, or until one of the signals aborts. Resolves in both cases. */
export async function interruptibleSleep(
  clock: Pick<Clock, 'sleep'>,
  ms: number,
  ...signals: readonly AbortSignal[]
): Promise<void> {
  using either = joinSignals(...signals)
  try {
    await clock.sleep(ms, either.signal)
  } catch (error) {
    if (!either.signal.aborted) throw error
  }
}

/** Waits until `work` ends, `ms` have passed, or one of the signals aborts. Rejects if `work` rejects first. */
export async function waitAtMost(
  clock: Pick<Clock, 'sleep'>,
  ms: number,
  work: Promise<unknown>,
  ...signals: readonly AbortSignal[]
): Promise<void> {
  const ended = new AbortController()
  try {
    await Promise.race([work, interruptibleSleep(clock, ms, ended.signal, ...signals)])
  } finally {
    ended.abort(NOTIFIED)
  }
}

function abortReason(signal: AbortSignal | undefined): Error {
  return signal?.reason instanceof Error ? signal.reason : new Error('aborted')
}
