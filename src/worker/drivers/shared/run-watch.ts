import { watch as watchFolder } from 'node:fs'
import type { RunId } from '../../../domain/ids.ts'
import type { ObservedRun } from '../../../contract/workers/worker-protocol.ts'
import { NOTIFIED, type Clock } from '../../../lib/clock.ts'
import { joinSignals } from '../../../lib/join-signals.ts'
import type { Log } from '../../../lib/log.ts'

/** Watches for changes of runs that no method call causes: a sandbox ends by itself or becomes idle. */
export type RunWatch = {
  /** Calls `onChange` after every change, until the returned function is called. */
  subscribe(onChange: () => void): () => void
  /** Checks the runs soon, without waiting for the next poll. */
  checkSoon(): void
  /**
   * Lets the next poll wait if somebody else has listed the runs just now, and a poll would have found nothing to do. The worker lists
   * them every few seconds for a heartbeat, so many idle runs are looked at half as often.
   */
  noteListed(observed: readonly ObservedRun[]): void
  close(): Promise<void>
}

type RunWatchInput = {
  readonly list: () => Promise<readonly ObservedRun[]>
  /** Frees the resources of an ended run. */
  readonly releaseEnded: (run: RunId) => Promise<void>
  /** The folder in which a file appears when a run ends. */
  readonly endsFolder: string
  readonly clock: Clock
  readonly log: Log
}

/**
 * The poll interval. Most ends are noticed at once by a new file in `endsFolder`. Polling finds the runs for which the
 * process that writes this file was killed.
 */
const POLL_MS = 500
/** The more runs, the longer the interval, because a look at each takes 31 us (2026-11). */
const POLL_MS_FOR_EACH_RUN = 10
/** The longest interval: for so long, a run may be metered after its end. */
const POLL_MAX_MS = 10_000

/** Watches runs until `close`. */
export function makeRunWatch(input: RunWatchInput): RunWatch {
  const subscribers = new Set<() => void>()
  const closing = new AbortController()
  const folder = watchFolder(input.endsFolder)
  let checkRequested = Promise.withResolvers<null>()
  let lastSignature = ''
  let pollMs = POLL_MS
  let listedAtMs = -Infinity

  const notify = (): void => {
    for (const onChange of subscribers) onChange()
  }
  const checkRuns = async (): Promise<void> => {
    const observed = await input.list()
    pollMs = Math.min(POLL_MAX_MS, Math.max(POLL_MS, observed.length * POLL_MS_FOR_EACH_RUN))
    listedAtMs = input.clock.monotonicMs()
    const signature = signatureOf(observed)
    if (signature !== lastSignature) {
      lastSignature = signature
      notify()
    }
    await Promise.all(observed.filter((run) => run.phase === 'ended').map((run) => input.releaseEnded(run.run_id)))
  }
  const checkSoon = (): void => {
    checkRequested.resolve(null)
  }
  const noteListed = (observed: readonly ObservedRun[]): void => {
    if (observed.some((run) => run.phase === 'ended') || signatureOf(observed) !== lastSignature) return
    listedAtMs = input.clock.monotonicMs()
  }
  const run = async (): Promise<void> => {
    while (!closing.signal.aborted) {
      checkRequested = Promise.withResolvers<null>()
      try {
        await checkRuns()
      } catch (error) {
        input.log.error({ error }, 'checking the runs failed')
      }
      await Promise.race([checkRequested.promise, pause()])
    }
  }
  const pause = async (): Promise<void> => {
    const limit = new AbortController()
    using stop = joinSignals(closing.signal, limit.signal)
    void checkRequested.promise.then(() => {
      limit.abort(NOTIFIED)
    })
    try {
      for (let restMs = pollMs; restMs > 0; restMs = pollMs - (input.clock.monotonicMs() - listedAtMs))
        await input.clock.sleep(restMs, stop.signal)
    } catch (error) {
      if (!stop.signal.aborted) throw error
    }
  }
  folder.on('change', checkSoon)
  folder.on('error', (error) => {
    input.log.warn({ error }, 'watching the folder of ended runs failed; polling continues')
  })
  const running = run()
  return {
    subscribe(onChange) {
      subscribers.add(onChange)
      return () => {
        subscribers.delete(onChange)
      }
    },
    checkSoon,
    noteListed,
    async close() {
      folder.close()
      closing.abort()
      await running
    },
  }
}

/** What subscribers learn of: runs with the same signature look the same to them. */
function signatureOf(observed: readonly ObservedRun[]): string {
  return observed
    .map(({ run_id, phase, is_idle_expired = false, memory_kills = 0 }) =>
      [run_id, phase, is_idle_expired ? 'idle' : '', memory_kills].join(' '),
    )
    .toSorted()
    .join('\n')
}
