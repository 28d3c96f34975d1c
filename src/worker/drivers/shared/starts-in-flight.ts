import type { RunId } from '../../../domain/ids.ts'
import type { KeyedMutex } from '../../../lib/turns/keyed-mutex.ts'
import { joinSignals } from '../../../lib/join-signals.ts'

/** The starts that are in flight: at most one for each run. */
type StartsInFlight = {
  has(run: RunId): boolean
  /**
   * Starts a run: calls `work` under the run's mutex. If a start of the run is in flight, the caller waits for that start
   * instead. The signal of `work` aborts when the caller's `signal` aborts or the start is cancelled.
   */
  start(run: RunId, signal: AbortSignal, work: (signal: AbortSignal) => Promise<void>): Promise<void>
  /** Cancels a run's start if it is in flight. Resolves once the start has cleaned up. */
  cancel(run: RunId): Promise<void>
  /** Cancels every start. */
  close(): Promise<void>
}

/** Creates an empty set of starts. Calls `onEnd` after each start, whether it succeeded or failed. */
export function makeStartsInFlight(mutex: KeyedMutex, onEnd: () => void): StartsInFlight {
  const starts = new Map<RunId, { readonly done: Promise<void>; readonly abort: AbortController }>()
  const cancel = async (run: RunId, why: string): Promise<void> => {
    const start = starts.get(run)
    if (start === undefined) return
    start.abort.abort(new Error(why))
    await Promise.allSettled([start.done])
  }
  return {
    has: (run) => starts.has(run),
    async start(run, signal, work) {
      const inFlight = starts.get(run)
      if (inFlight !== undefined) return await inFlight.done
      const abort = new AbortController()
      const either = joinSignals(signal, abort.signal)
      const done = mutex
        .run(run, () => work(either.signal))
        .finally(() => {
          either[Symbol.dispose]()
          starts.delete(run)
          onEnd()
        })
      starts.set(run, { done, abort })
      await done
    },
    cancel: (run) => cancel(run, 'the run was stopped'),
    async close() {
      await Promise.all([...starts.keys()].map((run) => cancel(run, 'the worker is closing')))
    },
  }
}
