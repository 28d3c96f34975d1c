/** Deletes deliveries that are kept no longer: old ones, and those beyond the numbers that are kept. */
import type { OrgId, WebhookId } from '../../domain/ids.ts'
import type { Queryable } from '../postgres/database.ts'

/** The next webhook of all organizations after one of them, in the order of their ids. Null: there is none. */
export async function nextWebhook(
  q: Queryable,
  after: WebhookId | null,
): Promise<{ readonly id: WebhookId; readonly org_id: OrgId; readonly url: string } | null> {
  const { rows } = await q.query<{ readonly id: WebhookId; readonly org_id: OrgId; readonly url: string }>({
    name: 'pruneDeliveries.nextWebhook',
    text: 'SELECT id, org_id, url FROM webhooks WHERE $1::uuid IS NULL OR id > $1 ORDER BY id LIMIT 1',
    values: [after],
  })
  return rows[0] ?? null
}

/** `kept`: how many stay, the newest. `firstId`: those with lower ids are too old. `limit`: how many are deleted at once. */
type Bounds = { readonly kept: number; readonly firstId: string; readonly limit: number }

/** Deletes deliveries of a webhook that have ended. Returns how many it deleted. */
export async function pruneEnded(q: Queryable, id: WebhookId, { kept, firstId, limit }: Bounds): Promise<number> {
  const { rowCount } = await q.query({
    name: 'pruneDeliveries.pruneEnded',
    text: `DELETE FROM webhook_deliveries WHERE webhook_id = $1 AND id = ANY(ARRAY(
             SELECT d.id FROM webhook_deliveries d WHERE d.webhook_id = $1 AND d.status <> 'waiting' AND (d.id < $2 OR d.id <= (
               SELECT id FROM webhook_deliveries WHERE webhook_id = $1 AND status <> 'waiting' ORDER BY id DESC OFFSET $3 LIMIT 1))
             ORDER BY d.id LIMIT $4))`,
    values: [id, firstId, kept, limit],
  })
  return rowCount
}

/** Deletes deliveries of a webhook that still wait: the first ones of their order. Returns how many it deleted. */
export async function dropWaiting(q: Queryable, id: WebhookId, { kept, firstId, limit }: Bounds): Promise<number> {
  const { rowCount } = await q.query({
    name: 'pruneDeliveries.dropWaiting',
    text: `DELETE FROM webhook_deliveries WHERE webhook_id = $1 AND id = ANY(ARRAY(
             SELECT d.id FROM webhook_deliveries d WHERE d.webhook_id = $1 AND d.status = 'waiting' AND (d.id < $2 OR (d.place, d.id) <= (
               SELECT place, id FROM webhook_deliveries WHERE webhook_id = $1 AND status = 'waiting'
               ORDER BY place DESC, id DESC OFFSET $3 LIMIT 1))
             ORDER BY d.place, d.id LIMIT $4))`,
    values: [id, firstId, kept, limit],
  })
  return rowCount
}
