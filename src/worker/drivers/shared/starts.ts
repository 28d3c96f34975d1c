import { setMaxListeners } from 'node:events'
import type { RunId } from '../../../domain/ids.ts'
import type { RunOutcome, RunPhase } from '../../../contract/workers/worker-protocol.ts'
import { StartError } from '../../start-error.ts'
import type { KeyedMutex } from '../../../lib/keyed-mutex.ts'

/** The starts that are in flight: one for each run. */
export type StartsInFlight = {
  has(run: RunId): boolean
  /**
   * Has a run started by `begin`, in the run's turn; who asks for it meanwhile gets the same answer. The signal that
   * `begin` is given is aborted with the caller's, and when the start is given up.
   */
  start(run: RunId, signal: AbortSignal, begin: (signal: AbortSignal) => Promise<void>): Promise<void>
  /** A start in flight is told to give up, and has cleaned up when this resolves. */
  cancel(run: RunId): Promise<void>
  /** The same for all of them. */
  close(): Promise<void>
}

/** No start is in flight yet; `onOver` is told whenever one has come to its end. */
export function makeStartsInFlight(mutex: KeyedMutex, onOver: () => void): StartsInFlight {
  const starts = new Map<RunId, { readonly done: Promise<void>; readonly abort: AbortController }>()
  const giveUp = async (run: RunId, why: string): Promise<void> => {
    const start = starts.get(run)
    if (start === undefined) return
    start.abort.abort(new Error(why))
    await Promise.allSettled([start.done])
  }
  return {
    has: (run) => starts.has(run),
    async start(run, signal, begin) {
      const inFlight = starts.get(run)
      if (inFlight !== undefined) return await inFlight.done
      const abort = new AbortController()
      const either = AbortSignal.any([signal, abort.signal])
      setMaxListeners(0, either) // every wait of the start listens to it
      const done = mutex
        .run(run, () => begin(either))
        .finally(() => {
          starts.delete(run)
          onOver()
        })
      starts.set(run, { done, abort })
      await done
    },
    cancel: (run) => giveUp(run, 'the run was stopped'),
    async close() {
      await Promise.all([...starts.keys()].map((run) => giveUp(run, 'the worker is closing')))
    },
  }
}

type Seen = { readonly phase: Exclude<RunPhase, 'ended'> } | { readonly phase: 'ended'; readonly outcome: RunOutcome }

/** Answers the start of a run that is known already: it succeeds unless the run has ended, and then fails as it did. */
export function throwIfEnded(seen: Seen): void {
  if (seen.phase !== 'ended') return
  if (seen.outcome.kind === 'start_failed') throw new StartError(seen.outcome.reason, seen.outcome.message)
  throw new StartError('host', 'the run has ended')
}
