import type { Caller } from '../domain/caller.ts'
import { Problem } from '../domain/problem.ts'
import type { ControlDeps } from './deps.ts'
import { CallerEnded, watchCaller } from './watch-caller.ts'

/** A place among the open log streams, for as long as one may be open. */
export type LogLease = {
  /** Aborted when the reader left, its time is over, or its key is no good any more. The lease is over with it. */
  readonly signal: AbortSignal
  /** Gives the place back. May be repeated. */
  readonly release: () => void
}

/** Takes a lease of at most `limitMs` (null: without a limit). Throws `rate_limited` when too many streams are open. */
export function takeLogLease(
  deps: Pick<ControlDeps, 'logStreams' | 'callerWatches'>,
  caller: Caller,
  { limitMs, signal: left }: { readonly limitMs: number | null; readonly signal: AbortSignal },
): LogLease {
  const giveBack = deps.logStreams.take()
  if (giveBack === null) throw tooMany(deps.logStreams.taken)
  const over = new AbortController()
  const watch = watchCaller(deps, caller)
  const end = (reason: Error): void => {
    over.abort(reason)
    release()
  }
  const onLeft = (): void => {
    end(new Error('the reader left', { cause: left.reason }))
  }
  const onCallerEnded = (): void => {
    const { reason } = watch.signal
    // A suspended organization may still read; what runs in it is being stopped, and what follows it ends with that.
    if (!(reason instanceof CallerEnded) || reason.why !== 'org_suspended') end(new Error('the caller may not go on'))
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

function tooMany(open: number): Problem {
  return new Problem('rate_limited', {
    retryAfterSeconds: 1,
    details: {
      reason: 'too many log streams are open',
      seen: open,
      accepted: 'the same request when others have ended',
    },
  })
}
