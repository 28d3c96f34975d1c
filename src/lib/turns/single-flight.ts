/** Shares one run of some work between callers that need the same result at the same time. */
export type SingleFlight<Result> = {
  /**
   * Joins the work that runs under `key`, or starts `work`. If a caller's `signal` aborts, the caller's result rejects
   * with the signal's reason. The signal that `work` gets aborts once all callers have left this way. A caller without
   * a signal never leaves.
   */
  join(key: string, work: (signal: AbortSignal) => Promise<Result>, signal?: AbortSignal): Flight<Result>
}

/** One caller's part in a shared run. `isLeader`: this caller started the run. */
export type Flight<Result> = { readonly isLeader: boolean; readonly result: Promise<Result> }

type RunningWork<Result> = { readonly result: Promise<Result>; readonly abort: AbortController; callers: number }

/** Creates a `SingleFlight`. It does not store results: once the work has ended, the next caller starts it again. */
export function makeSingleFlight<Result>(): SingleFlight<Result> {
  const running = new Map<string, RunningWork<Result>>()

  function start(key: string, work: (signal: AbortSignal) => Promise<Result>): RunningWork<Result> {
    const abort = new AbortController()
    const result = work(abort.signal).finally(() => {
      if (running.get(key) === started) running.delete(key)
    })
    const started: RunningWork<Result> = { result, abort, callers: 0 }
    running.set(key, started)
    return started
  }

  async function wait(key: string, joined: RunningWork<Result>, signal: AbortSignal): Promise<Result> {
    const left = Promise.withResolvers<never>()
    const leave = (): void => {
      left.reject(signal.reason)
    }
    signal.addEventListener('abort', leave, { once: true })
    if (signal.aborted) leave()
    try {
      return await Promise.race([joined.result, left.promise])
    } finally {
      signal.removeEventListener('abort', leave)
      joined.callers -= 1
      if (joined.callers === 0) {
        if (running.get(key) === joined) running.delete(key)
        joined.abort.abort(signal.reason)
      }
    }
  }

  return {
    join(key, work, signal) {
      const found = running.get(key)
      const joined = found ?? start(key, work)
      joined.callers += 1
      const result = signal === undefined ? joined.result : wait(key, joined, signal)
      return { isLeader: found === undefined, result }
    },
  }
}
