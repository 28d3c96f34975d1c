import type { Duplex } from 'node:stream'
import type { Caller } from '../../domain/orgs/caller.ts'
import type { SandboxKey } from '../../domain/sandboxes/sandbox.ts'
import type { ConcurrencyLimit } from '../requests/concurrency-limit.ts'
import { openWorkerStream, type StreamTarget, type WorkerStreams } from './open-worker-stream.ts'
import type { CallerWatchDeps } from './watch-caller.ts'

export type StreamPermitDeps = CallerWatchDeps & {
  readonly logStreamLimit: ConcurrencyLimit<Pick<SandboxKey, 'org_id'>>
}

/** The reason with which a permit ends at its own limit. */
export const TIME_IS_OVER = new Error('the time to follow is over')

/** A permit for one open stream of events, such as a followed log. */
export type StreamPermit = {
  /**
   * Aborted when the client disconnects, with `TIME_IS_OVER` when the limit has passed, or, with a `CallerEnded`, when the
   * caller loses its rights.
   */
  readonly signal: AbortSignal
  /** May be repeated. */
  readonly release: () => void
}

/** Acquires a permit for at most `limitMs`. Null means no time limit. Throws `rate_limited`, naming the limit. */
export function acquireStreamPermit(
  deps: StreamPermitDeps,
  caller: Caller,
  { limitMs, signal: clientGone }: { readonly limitMs: number | null; readonly signal: AbortSignal },
): StreamPermit {
  const releasePermit = deps.logStreamLimit.acquire(caller)
  const over = new AbortController()
  // A suspended organization may still read its logs. Its runs are being stopped, which ends the streams that follow
  // them.
  const watch = deps.callerWatcher.watch(caller, { outlastsSuspension: true })
  const end = (reason: unknown): void => {
    over.abort(reason)
    release()
  }
  const onClientGone = (): void => {
    end(new Error('the client disconnected', { cause: clientGone.reason }))
  }
  const onCallerEnded = (): void => {
    end(watch.signal.reason)
  }
  const timer = limitMs === null ? null : setTimeout(end, limitMs, TIME_IS_OVER)
  const release = (): void => {
    releasePermit()
    watch.stop()
    if (timer !== null) clearTimeout(timer)
    clientGone.removeEventListener('abort', onClientGone)
  }
  clientGone.addEventListener('abort', onClientGone, { once: true })
  watch.signal.addEventListener('abort', onCallerEnded, { once: true })
  if (clientGone.aborted) onClientGone()
  return { signal: over.signal, release }
}

/** Opens a stream to a worker, which is destroyed when the permit's signal aborts. Throws as `openWorkerStream` does. */
export async function openPermittedStream(
  deps: WorkerStreams,
  target: StreamTarget,
  { signal }: StreamPermit,
): Promise<Duplex> {
  const stream = await openWorkerStream(deps, target, { signal, messages: MESSAGES })
  const hangUp = (): void => {
    stream.destroy()
  }
  stream.on('error', hangUp) // the reader gets the error; without a reader, nobody needs it
  signal.addEventListener('abort', hangUp, { once: true })
  stream.once('close', () => {
    signal.removeEventListener('abort', hangUp)
  })
  if (signal.aborted) hangUp()
  return stream
}

const MESSAGES = {
  late: 'the worker of this sandbox did not answer',
  full: 'too many streams are being opened',
} as const
