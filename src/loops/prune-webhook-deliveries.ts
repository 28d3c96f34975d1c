import type { BaseDeps, LeaderFence } from '../control/deps.ts'
import { recordEvent } from '../control/events/record-event.ts'
import { factsOf } from '../control/webhooks/webhooks.ts'
import type { WebhookId } from '../domain/ids.ts'
import { SYSTEM_ACTOR } from '../domain/orgs/caller.ts'
import { DAY_MS } from '../domain/usage/metering.ts'
import { DELIVERY_KEPT_DAYS, ENDED_KEPT, WAITING_MAX } from '../domain/webhooks/webhook.ts'
import { minUuidAt } from '../lib/uuid.ts'
import type { Queryable } from '../store/postgres/database.ts'
import * as pruneDeliveries from '../store/webhooks/prune-deliveries.ts'
import type { Loop } from './loop.ts'

type PruneDeps = Pick<BaseDeps, 'db' | 'clock' | 'uuids'> & {
  readonly fence: LeaderFence
  /** The numbers that are kept, for tests. */
  readonly kept?: { readonly ended: number; readonly waiting: number }
}

const PERIOD_MS = 60_000
/** The maximum number of rows that one step deletes. */
const BATCH = 2_000
/** The rest between two webhooks, as a multiple of the time that the first one took. */
const REST_FACTOR = 4

/**
 * Deletes deliveries of webhooks that are kept no longer, one webhook in each pass. Deliveries that wait are dropped only beyond the bounds,
 * and an event for each batch says how many.
 */
export function makePruneWebhookDeliveriesLoop({ db, clock, uuids, fence, kept }: PruneDeps): Loop {
  const { ended = ENDED_KEPT, waiting = WAITING_MAX } = kept ?? {}
  let last: WebhookId | null = null

  async function run(): Promise<number | null> {
    const startedMs = clock.monotonicMs()
    const webhook = await db.asSystem((q) => pruneDeliveries.nextWebhook(q, last))
    last = webhook?.id ?? null
    if (webhook === null) return null
    const { id, org_id } = webhook
    const firstId = minUuidAt(new Date(clock.now().getTime() - DELIVERY_KEPT_DAYS * DAY_MS))
    const bounds = { firstId, limit: BATCH }
    const dropWaiting = async (tx: Queryable): Promise<number> => {
      await fence(tx)
      const count = await pruneDeliveries.dropWaiting(tx, id, { ...bounds, kept: waiting })
      const dropped = { org_id, actor: SYSTEM_ACTOR, event_type: 'webhook_deliveries_dropped' } as const
      if (count > 0) await recordEvent({ clock, uuids }, tx, { ...dropped, payload: { ...factsOf(webhook), count } })
      return count
    }
    await untilBelowBatch(() => db.asSystem((q) => pruneDeliveries.pruneEnded(q, id, { ...bounds, kept: ended })))
    await untilBelowBatch(() => db.transaction('system', dropWaiting))
    return REST_FACTOR * (clock.monotonicMs() - startedMs)
  }

  return { name: 'prune-webhook-deliveries', periodMs: PERIOD_MS, topics: [], run }
}

/** Repeats a step until it deletes less than a batch, so that a pass leaves nothing beyond the bounds. */
async function untilBelowBatch(step: () => Promise<number>): Promise<void> {
  while ((await step()) === BATCH);
}
