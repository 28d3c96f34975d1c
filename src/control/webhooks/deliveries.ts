import type { EventId, WebhookId } from '../../domain/ids.ts'
import type { OrgActor } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import { renderMessage } from '../../domain/webhooks/message.ts'
import type { Delivery, DeliveryStatus } from '../../domain/webhooks/webhook.ts'
import { notifyAtCommit } from '../../store/postgres/notification-connection.ts'
import * as deliveries from '../../store/webhooks/deliveries.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import { readPage, type Page, type PageInput } from '../requests/page.ts'
import { WEBHOOKS_TOPIC } from '../topics.ts'
import { factsOf, getWebhook } from './webhooks.ts'

type InOrg = Pick<OrgActor, 'org_id'>

/** Which delivery of which webhook. */
export type DeliveryKey = { readonly webhook_id: WebhookId; readonly id: EventId }

/** A page of the deliveries of a webhook, those of the newest events first. Throws `webhook_not_found`. */
export async function listDeliveries(
  deps: Pick<BaseDeps, 'db'>,
  acting: InOrg,
  {
    webhook_id,
    status,
    ...input
  }: PageInput & { readonly webhook_id: WebhookId; readonly status: DeliveryStatus | null },
): Promise<Page<Delivery>> {
  await getWebhook(deps, acting, webhook_id)
  const { org_id } = acting
  const page = await readPage('webhook_deliveries', input, (after, count) =>
    deps.db.asOrg(org_id, (q) => deliveries.page(q, { org_id, webhook_id, status }, { after, count })),
  )
  return { ...page, items: page.items.map(shown) }
}

/** A delivery of a webhook. Throws `webhook_not_found` and `webhook_delivery_not_found`. */
export async function getDelivery(deps: Pick<BaseDeps, 'db'>, acting: InOrg, key: DeliveryKey): Promise<Delivery> {
  await getWebhook(deps, acting, key.webhook_id)
  const found = await deps.db.asOrg(acting.org_id, (q) => deliveries.find(q, acting.org_id, key))
  if (found === null) throw new Problem('webhook_delivery_not_found')
  return shown(found)
}

/**
 * Sends a delivery again at once, whatever became of it, or once its webhook resumes. Throws `webhook_not_found` and
 * `webhook_delivery_not_found`.
 */
export async function resendDelivery(deps: WriteDeps, acting: OrgActor, key: DeliveryKey): Promise<Delivery> {
  const webhook = await getWebhook(deps, acting, key.webhook_id)
  await deps.db.transaction(acting.org_id, async (tx) => {
    if (!(await deliveries.resend(tx, acting.org_id, key))) throw new Problem('webhook_delivery_not_found')
    const payload = { ...factsOf(webhook), delivery_id: key.id }
    await recordEvent(deps, tx, { ...acting, event_type: 'webhook_delivery_resent', payload })
    await notifyAtCommit(tx, [WEBHOOKS_TOPIC])
  })
  return await getDelivery(deps, acting, key)
}

function shown({ event, ...delivery }: deliveries.ListedDelivery): Delivery {
  const request_body = event === null ? null : renderMessage(event)
  return { ...delivery, event_type: event?.event_type ?? null, request_body }
}
