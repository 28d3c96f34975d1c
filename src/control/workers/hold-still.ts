import { SYNC_HOLD_MS, type SyncAnswer } from '../../contract/workers/worker-protocol.ts'
import { interruptibleSleep, NOTIFIED } from '../../lib/clock.ts'
import type { BaseDeps } from '../deps.ts'
import { ticketTopic, workerTopic } from '../topics.ts'
import type { StillSync } from './still-syncs.ts'
import { emptyAnswer, hasNews, type Tickets } from './worker-sync.ts'

/**
 * Serves a sync that says nothing new without reading its report: once it is taken in, it is held until its time is over, a
 * stream is wanted, or something may have changed. `changed`: something had changed before, and the report was not taken in.
 * `woken`, with when the hold ends: it was taken in, and there may be something to tell. A wake-up that is lost costs the
 * time until the next sync, with which the database is compared anew.
 */
export async function holdStill(
  deps: Pick<BaseDeps, 'clock' | 'notifications'> & { readonly tickets: Tickets; readonly onTaken: () => void },
  still: StillSync,
  signal: AbortSignal,
): Promise<SyncAnswer | 'changed' | { readonly woken: { readonly endMs: number } }> {
  const { worker, report, told } = still
  const endMs = deps.clock.monotonicMs() + SYNC_HOLD_MS
  let isWoken = false
  let sleeper = new AbortController()
  const rouse = (): void => {
    sleeper.abort(NOTIFIED)
  }
  signal.addEventListener('abort', rouse)
  const unsubscribes = [
    deps.notifications.subscribe(workerTopic(worker), () => {
      isWoken = true
      rouse()
    }),
    deps.notifications.subscribe(ticketTopic(worker), rouse),
  ]
  try {
    if (!(await still.renew())) return 'changed' // subscribed before: what changes after that comparison wakes
    deps.onTaken()
    for (;;) {
      const answer = { ...emptyAnswer(deps.tickets, worker, report), ...told }
      const restMs = endMs - deps.clock.monotonicMs()
      if (hasNews(answer, report) || restMs <= 0 || signal.aborted) return answer
      if (isWoken) return { woken: { endMs } }
      sleeper = new AbortController()
      await interruptibleSleep(deps.clock, restMs, sleeper.signal)
    }
  } finally {
    signal.removeEventListener('abort', rouse)
    for (const unsubscribe of unsubscribes) unsubscribe()
  }
}
