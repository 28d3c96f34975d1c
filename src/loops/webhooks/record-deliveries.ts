import type { BaseDeps, LeaderFence } from '../../control/deps.ts'
import type { WebhookId } from '../../domain/ids.ts'
import { minUuidAt } from '../../lib/uuid.ts'
import * as recordDeliveries from '../../store/webhooks/record-deliveries.ts'

export type RecordDeps = Pick<BaseDeps, 'db' | 'clock' | 'log'> & {
  readonly fence: LeaderFence
  /** The most events that one transaction turns into deliveries, for tests. */
  readonly partSize?: number
}

/** What a look found: which webhooks have new deliveries, whether there are webhooks at all, and whether to look again at once. */
type Look = {
  readonly webhooks: readonly WebhookId[]
  readonly hasWebhooks: boolean
  readonly hasMore: boolean
}

/** How many events one transaction turns into deliveries, and how many deliveries they may become. 100,000 rows take some 2 s. */
const PART = 10_000
const ROWS = 100_000
/** How often the progress is stored if no event is found, in milliseconds. */
const SAVE_EVERY_MS = 30_000
/** The time between what a backup has of the progress and of events is far less. */
const RESTORE_SLACK_MS = 10 * 60_000

/** Makes the function that turns new events into deliveries. The progress of an earlier leader is read first. */
export function makeDeliveryRecorder({ db, clock, log, fence, partSize = PART }: RecordDeps): () => Promise<Look> {
  let progress: recordDeliveries.Progress | null = null
  let savedAtMs = Number.NEGATIVE_INFINITY

  async function begin(): Promise<recordDeliveries.Progress> {
    return await db.transaction('system', async (tx) => {
      await fence(tx)
      const { epoch, progress: stored } = await recordDeliveries.read(tx)
      if (stored?.epoch === epoch) return stored
      if (stored === null) return { epoch, done: 0n, windowEnd: null, after: null, since: null }
      log.warn({}, 'the database was restored: webhooks may get events again that they got shortly before the backup')
      const savedAt = await recordDeliveries.rebase(tx)
      const since = new Date(savedAt.getTime() - RESTORE_SLACK_MS)
      const rebased = { epoch, done: 0n, windowEnd: null, after: null, since }
      await recordDeliveries.save(tx, rebased, savedAt)
      return rebased
    })
  }

  /** Records a part of a window. Returns the progress after it, and the webhooks that got deliveries. */
  async function recordPart(from: recordDeliveries.Progress & { readonly windowEnd: bigint }, limit: number) {
    const { epoch, done, windowEnd, since } = from
    const after = from.after ?? (since === null ? null : minUuidAt(since))
    return await db.transaction('system', async (tx) => {
      await fence(tx)
      const part = { from: done, to: windowEnd, after, since, limit }
      const { read, last, webhooks } = await recordDeliveries.record(tx, part, clock.now())
      const next =
        read < limit
          ? { epoch, done: windowEnd, windowEnd: null, after: null, since: null }
          : { epoch, done, windowEnd, after: last, since }
      await recordDeliveries.save(tx, next, clock.now())
      return { next, webhooks }
    })
  }

  return async () => {
    progress ??= await begin()
    const from = progress.done
    const { webhooksOfOrg, horizon, hasEvents } = await db.asSystem((q) => recordDeliveries.look(q, from))
    const hasWebhooks = webhooksOfOrg > 0
    const isDue = clock.monotonicMs() - savedAtMs > SAVE_EVERY_MS
    if (progress.windowEnd === null && !hasEvents && !isDue) {
      progress = { ...progress, done: horizon, since: null }
      return { webhooks: [], hasWebhooks, hasMore: false }
    }
    const windowEnd = progress.windowEnd ?? horizon
    const { next, webhooks } = await recordPart(
      { ...progress, windowEnd },
      Math.min(partSize, Math.ceil(ROWS / Math.max(1, webhooksOfOrg))),
    )
    progress = next
    savedAtMs = clock.monotonicMs()
    return { webhooks, hasWebhooks, hasMore: next.windowEnd !== null }
  }
}
