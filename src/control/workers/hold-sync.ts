import { SYNC_HOLD_MS, type SyncAnswer, type SyncRequest } from '../../contract/workers/worker-protocol.ts'
import { Problem } from '../../domain/problem.ts'
import { interruptibleSleep, NOTIFIED } from '../../lib/clock.ts'
import * as workers from '../../store/workers/workers.ts'
import type { BaseDeps } from '../deps.ts'
import { SHARED_VOLUMES_TOPIC, ticketTopic, workerTopic } from '../topics.ts'
import { recordReport, type RecordReportDeps, type RecordedReport } from './record-report.ts'
import { answerFromReport, emptyAnswer, hasNews, makeAnswer, type AnswerBody, type AnswerDeps } from './sync-answer.ts'

export type HoldSyncDeps = RecordReportDeps &
  AnswerDeps & {
    /** Called once the report is recorded: the worker's lease goes on from there. */
    readonly onRecorded?: () => void
  }

/**
 * Serves one sync: records the report and answers as soon as the worker has something new to hear. It answers at the latest
 * when the hold time is over, a later sync of the worker arrives, or the worker hangs up (`signal`). A released sync answers
 * what it read last and reads no more, so that it says nothing newer than the sync that released it. A ticket alone is
 * answered without a look at the database: a client waits for its stream. Throws `worker_life_over` for a report of an
 * incarnation that was replaced.
 */
export async function holdSync(deps: HoldSyncDeps, report: SyncRequest, signal: AbortSignal): Promise<SyncAnswer> {
  const worker = report.worker_id
  const endMs = deps.clock.monotonicMs() + SYNC_HOLD_MS
  let isNotified = false
  let hasTicket = false
  let sleeper = new AbortController()
  const noteChange = (): void => {
    isNotified = true
    sleeper.abort(NOTIFIED)
  }
  const noteTicket = (): void => {
    hasTicket = true
    sleeper.abort(NOTIFIED)
  }
  // Before the report is recorded: a change that this does not see notifies.
  const topics = [workerTopic(worker), ...(report.storage.is_shared ? [SHARED_VOLUMES_TOPIC] : [])]
  const unsubscribes = [
    ...topics.map((topic) => deps.notifications.subscribe(topic, noteChange)),
    deps.notifications.subscribe(ticketTopic(worker), noteTicket),
  ]
  try {
    const recorded = await recordReport(deps, report)
    if (recorded === null) await refuseSuperseded(deps, report)
    deps.onRecorded?.()
    if (recorded === null) return { ...emptyAnswer(deps.tickets, worker, report), generation: null }
    for (let isFirst = true; ; isFirst = false) {
      // What changed while the report was recorded is newer than an answer that follows from the report.
      const immediate = isFirst ? answerFromReport(deps.tickets, report, recorded) : null
      if (immediate === null) isNotified = false
      hasTicket = false
      const answer = immediate ?? (await makeAnswer(deps, report))
      const restMs = endMs - deps.clock.monotonicMs()
      if (hasNews(answer, report) || restMs <= 0) return completed(answer, report, recorded)
      if (!isNotified && !hasTicket) {
        sleeper = new AbortController()
        await interruptibleSleep(deps.clock, restMs, AbortSignal.any([sleeper.signal, signal]))
      }
      if (signal.aborted) return completed(answer, report, recorded)
      if (hasTicket && !isNotified) {
        const streams = emptyAnswer(deps.tickets, worker, report)
        if (hasNews(streams, report)) return completed(streams, report, recorded)
      }
    }
  } finally {
    for (const unsubscribe of unsubscribes) unsubscribe()
  }
}

/**
 * Adds what every answer says, and the generation if the same report may go unread next time: it moved nothing, and the
 * worker has nothing left to hear or to delete. Volumes of a shared storage have no worker whose generation they raise.
 */
function completed(answer: AnswerBody, report: SyncRequest, recorded: RecordedReport): SyncAnswer {
  const isQuiet = !recorded.hasMoved && !hasNews(answer, report) && answer.discard_volumes.length === 0
  const generation = isQuiet && !report.storage.is_shared ? recorded.generation : null
  return { ...answer, ...recorded.notice, generation }
}

/**
 * A report that was not recorded because a later incarnation of its worker has reported must not extend its sender's
 * renew deadline. Mostly nobody hears of it: it was delayed while the worker restarted.
 */
async function refuseSuperseded({ db }: Pick<BaseDeps, 'db'>, { worker_id, incarnation }: SyncRequest): Promise<void> {
  if (await db.asSystem((q) => workers.isSuperseded(q, worker_id, incarnation))) throw new Problem('worker_life_over')
}
