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
    /** Called once the report is recorded. The worker's lease starts again at that moment. */
    readonly onRecorded?: () => void
  }

/**
 * Serves one sync: records the report and answers as soon as there is news for the worker. It answers at the latest
 * when the hold time is over, the worker sends a later sync, or the worker hangs up (`signal`). A released sync answers
 * from its last read and reads no more. Its answer is therefore never newer than the answer of the sync that released
 * it. A new ticket alone is answered without a query, because a client waits for its stream. Throws `worker_life_over`
 * for a report of an incarnation that was replaced.
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
  // Subscribe before the report is recorded. A change that the recording does not see then causes a notification.
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
      // The first answer comes from the report. Keep `isNotified`: a change during the recording is newer than that
      // answer.
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
 * Adds the notice that every answer contains, and the generation. The worker sends that generation back with an unchanged
 * report, which then need not be read. The generation is null if the report moved a sandbox, or if the worker has anything
 * left to get or to delete. It is also null for a shared storage: its volumes have no worker whose generation they raise.
 */
function completed(answer: AnswerBody, report: SyncRequest, recorded: RecordedReport): SyncAnswer {
  const isQuiet = !recorded.hasMoved && !hasNews(answer, report) && answer.discard_volumes.length === 0
  const generation = isQuiet && !report.storage.is_shared ? recorded.generation : null
  return { ...answer, ...recorded.notice, generation }
}

/**
 * Refuses a report that was not recorded because a later incarnation of its worker has reported. The report must not
 * extend its sender's renew deadline. Usually nobody gets the refusal, because the report was delayed while the worker
 * restarted.
 */
async function refuseSuperseded({ db }: Pick<BaseDeps, 'db'>, { worker_id, incarnation }: SyncRequest): Promise<void> {
  if (await db.asSystem((q) => workers.isSuperseded(q, worker_id, incarnation))) throw new Problem('worker_life_over')
}
