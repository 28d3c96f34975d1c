import { watch as watchFolder } from 'node:fs'
import type { RunId } from '../../../domain/ids.ts'
import type { ObservedRun } from '../../../contract/workers/worker-protocol.ts'
import { NOTIFIED, type Clock } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'

/** Notices what changes by itself: a sandbox that ends. That one becomes idle is noticed by `activity.ts`. */
export type RunWatch = {
  subscribe(onChange: () => void): () => void
  /** Says that something may have changed. */
  checkSoon(): void
  /** Says that something has changed: the subscribers hear of it at once. */
  notify(): void
  close(): Promise<void>
}

export type RunWatchInput = {
  readonly list: () => Promise<readonly ObservedRun[]>
  /** Lets go of what an ended run holds. */
  readonly releaseEnded: (run: RunId) => Promise<void>
  /** The shims write here as they end. */
  readonly exitsFolder: string
  readonly clock: Clock
  readonly log: Log
}

/** The folder tells of most ends at once; looking again this often finds those whose shim was killed. */
const POLL_MS = 500

/** Watches until `close`. */
export function makeRunWatch(input: RunWatchInput): RunWatch {
  const subscribers = new Set<() => void>()
  const closing = new AbortController()
  const folder = watchFolder(input.exitsFolder)
  let wake = Promise.withResolvers<null>()
  let lastSeen = ''

  const notify = (): void => {
    for (const onChange of subscribers) onChange()
  }
  const look = async (): Promise<void> => {
    const seen = await input.list()
    const signature = seen
      .map((run) => `${run.run_id} ${run.phase}`)
      .toSorted()
      .join('\n')
    if (signature !== lastSeen) {
      lastSeen = signature
      notify()
    }
    await Promise.all(seen.filter((run) => run.phase === 'ended').map((run) => input.releaseEnded(run.run_id)))
  }
  const checkSoon = (): void => {
    wake.resolve(null)
  }
  const run = async (): Promise<void> => {
    while (!closing.signal.aborted) {
      wake = Promise.withResolvers<null>()
      try {
        await look()
      } catch (error) {
        input.log.error({ err: error }, 'looking at the runs failed')
      }
      await Promise.race([wake.promise, pause()])
    }
  }
  const pause = async (): Promise<void> => {
    const limit = new AbortController()
    const stop = AbortSignal.any([closing.signal, limit.signal])
    void wake.promise.then(() => {
      limit.abort(NOTIFIED)
    })
    try {
      await input.clock.sleep(POLL_MS, stop)
    } catch (error) {
      if (!stop.aborted) throw error
    }
  }
  folder.on('change', checkSoon)
  folder.on('error', (error) => {
    input.log.warn({ err: error }, 'watching the folder of ended runs failed; polling goes on')
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
    notify,
    async close() {
      folder.close()
      closing.abort()
      await running
    },
  }
}
