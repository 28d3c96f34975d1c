import type { Caller } from '../../domain/orgs/caller.ts'
import type { ControlDeps } from '../deps.ts'
import { watchCaller } from './watch-caller.ts'

/** A place among the open log streams, for as long as one may be open. */
export type LogStreamPermit = {
  /** Aborted when the reader left, its time is over, or, with a `CallerEnded`, its key is no good any more. The lease is over with it. */
  readonly signal: AbortSignal
  /** Gives the place back. May be repeated. */
  readonly release: () => void
}

/** Takes a lease of at most `limitMs` (null: without a limit). Throws `rate_limited`, naming the limit. */
export function acquireLogStream(
  deps: Pick<ControlDeps, 'logPlaces' | 'callerWatches'>,
  caller: Caller,
  { limitMs, signal: left }: { readonly limitMs: number | null; readonly signal: AbortSignal },
): LogStreamPermit {
  const giveBack = deps.logPlaces.acquire(caller)
  const over = new AbortController()
  // A suspended organization may still read; what runs in it is being stopped, and what follows it ends with that.
  const watch = watchCaller(deps, caller, { outlastsSuspension: true })
  const end = (reason: unknown): void => {
    over.abort(reason)
    release()
  }
  const onLeft = (): void => {
    end(new Error('the reader left', { cause: left.reason }))
  }
  const onCallerEnded = (): void => {
    end(watch.signal.reason)
  }
  const timer = limitMs === null ? null : setTimeout(end, limitMs, new Error('the time to follow is over'))
  const release = (): void => {
    giveBack()
    watch.stop()
    if (timer !== null) clearTimeout(timer)
    left.removeEventListener('abort', onLeft)
  }
  left.addEventListener('abort', onLeft, { once: true })
  watch.signal.addEventListener('abort', onCallerEnded, { once: true })
  if (left.aborted) onLeft()
  return { signal: over.signal, release }
}
