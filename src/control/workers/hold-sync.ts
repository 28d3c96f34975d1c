import { SYNC_HOLD_MS, type SyncAnswer, type SyncRequest } from '../../contract/workers/worker-protocol.ts'
import type { WorkerId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { interruptibleSleep, NOTIFIED } from '../../lib/clock.ts'
import * as workers from '../../store/workers/workers.ts'
import type { BaseDeps } from '../deps.ts'
import { SHARED_VOLUMES_TOPIC, ticketTopic, workerTopic } from '../topics.ts'
import type { StillNote } from './still-syncs.ts'
import {
  answerAtOnce,
  emptyAnswer,
  hasNews,
  makeAnswer,
  recordReport,
  type SyncDeps,
  type WorkerNotice,
  type Tickets,
} from './worker-sync.ts'

/**
 * Serves one sync: takes the report in and answers as soon as something is wanted that the worker does not hold yet,
 * at the latest when the hold time is over, a later sync of the worker arrives, or it hangs up (`signal`). A released
 * sync answers what it saw last and looks no further, so that it says nothing newer than the one that released it. A ticket
 * alone is answered without a look at the database: a client waits for its stream.
 */
export async function holdSync(
  deps: SyncDeps & {
    readonly tickets: Tickets
    /** Called once the report is taken in: the worker's lease goes on from there. */
    readonly onTaken?: () => void
    /** Of a report that was taken in as one that says nothing new: when its hold ends, and what the worker is told of itself. */
    readonly begun?: { readonly endMs: number; readonly told: WorkerNotice }
    /** Remembers a report that moved nothing and to which nothing was to be told. */
    readonly note?: StillNote
  },
  worker: WorkerId,
  report: SyncRequest,
  signal: AbortSignal,
): Promise<SyncAnswer> {
  const endMs = deps.begun?.endMs ?? deps.clock.monotonicMs() + SYNC_HOLD_MS
  let isWoken = false
  let hasTicket = false
  let sleeper = new AbortController()
  const wakeUp = (): void => {
    isWoken = true
    sleeper.abort(NOTIFIED)
  }
  const noteTicket = (): void => {
    hasTicket = true
    sleeper.abort(NOTIFIED)
  }
  const topics = [workerTopic(worker), ...(report.storage.is_shared ? [SHARED_VOLUMES_TOPIC] : [])]
  const unsubscribes = [
    ...topics.map((topic) => deps.notifications.subscribe(topic, wakeUp)),
    deps.notifications.subscribe(ticketTopic(worker), noteTicket),
  ]
  try {
    const taken = deps.begun === undefined ? await recordReport(deps, worker, report) : { ...BEGUN, ...deps.begun }
    if (taken === null) {
      await refuseOutlived(deps, worker, report)
      deps.onTaken?.()
      return emptyAnswer(deps.tickets, worker, report)
    }
    deps.onTaken?.()
    const { told, hasMoved, print } = taken
    for (let isFirst = true; ; isFirst = false) {
      // What came in while the report was taken in is newer than an answer that follows from it.
      const atOnce = isFirst ? answerAtOnce(deps.tickets, report, taken) : null
      if (atOnce === null) isWoken = false
      hasTicket = false
      const answer = { ...(atOnce ?? (await makeAnswer(deps, deps.tickets, worker, report))), ...told }
      const restMs = endMs - deps.clock.monotonicMs()
      if (isFirst && !hasMoved && print !== null && !hasNews(answer, report)) deps.note?.(print, told)
      if (hasNews(answer, report) || restMs <= 0) return answer
      if (!isWoken && !hasTicket) {
        sleeper = new AbortController()
        await interruptibleSleep(deps.clock, restMs, AbortSignal.any([sleeper.signal, signal]))
      }
      if (signal.aborted) return answer
      if (hasTicket && !isWoken) {
        const streams = { ...emptyAnswer(deps.tickets, worker, report), ...told }
        if (hasNews(streams, report)) return streams
      }
    }
  } finally {
    for (const unsubscribe of unsubscribes) unsubscribe()
  }
}

/**
 * A report that was not taken in because a later life of its worker has reported must not prolong the lease by which its
 * sender judges. Mostly nobody hears of it: it lay somewhere while the worker began anew.
 */
async function refuseOutlived(deps: Pick<BaseDeps, 'db'>, worker: WorkerId, { life }: SyncRequest): Promise<void> {
  if (await deps.db.asSystem((q) => workers.isSuperseded(q, worker, life))) throw new Problem('worker_life_over')
}

/** A report that was taken in before: there may be news, and it is not remembered. */
const BEGUN = { hasMoved: true, has_more: true, open: [], print: null } as const
