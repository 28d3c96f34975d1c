import { OPERATIONS } from '../../contract/operations.ts'
import type { WEBHOOK_OPERATIONS } from '../../contract/webhooks/operations.ts'
import { getDelivery, listDeliveries, resendDelivery } from '../../control/webhooks/deliveries.ts'
import { testWebhook } from '../../control/webhooks/test-webhook.ts'
import {
  createWebhook, deleteWebhook, getWebhook, listWebhooks, rotateWebhookSecret, updateWebhook,
} from '../../control/webhooks/webhooks.ts' // prettier-ignore
import type { EventCategory } from '../../domain/events/event-types.ts'
import { asId, type EventId, type WebhookId } from '../../domain/ids.ts'
import { etagOf } from '../../domain/requests/etag.ts'
import type { WebhookFilter } from '../../domain/webhooks/webhook.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'
import { readActor, readEventType } from './events.ts'
import {
  messageReply, pageInput, renderPage, taggedReply, type Handler, type HandlerFactory,
} from './handler.ts' // prettier-ignore

/** Creates the handlers of webhooks. */
export function makeWebhookHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof WEBHOOK_OPERATIONS, Handler> {
  return {
    create_webhook: handler(OPERATIONS.create_webhook, async ({ body }, { caller, attempt }) => {
      const { url, description = '' } = body
      const none = { event_types: null, category: null, sandbox_id: null, actor: null }
      const input = { url, description, ...none, ...readFilter(body), attempt }
      const { webhook, secret } = await call(createWebhook, caller, input)
      // The ETag is that of the webhook without its secret, because later reads return it in that form.
      return { json: JSON.stringify({ ...webhook, secret }), tag: etagOf(JSON.stringify(webhook)) }
    }),
    list_webhooks: handler(OPERATIONS.list_webhooks, async ({ query }, { caller }) =>
      renderPage(await call(listWebhooks, caller, pageInput(query)), (webhook) => JSON.stringify(webhook)),
    ),
    get_webhook: handler(OPERATIONS.get_webhook, async ({ params }, { caller }) =>
      taggedReply(JSON.stringify(await call(getWebhook, caller, idOf(params)))),
    ),
    update_webhook: handler(OPERATIONS.update_webhook, async ({ params, body }, { caller, ifMatch }) => {
      const { event_types: _types, category: _category, sandbox_id: _sandbox, actor: _actor, ...rest } = body
      const input = { id: idOf(params), changes: { ...rest, ...readFilter(body) }, ifMatch }
      return taggedReply(JSON.stringify(await call(updateWebhook, caller, input)))
    }),
    delete_webhook: handler(OPERATIONS.delete_webhook, async ({ params }, { caller, ifMatch }) => {
      await call(deleteWebhook, caller, { id: idOf(params), ifMatch })
      return messageReply('webhook deleted')
    }),
    test_webhook: handler(OPERATIONS.test_webhook, async ({ params }, { caller, signal }) =>
      JSON.stringify(await call(testWebhook, caller, { id: idOf(params), signal: signal() })),
    ),
    rotate_webhook_secret: handler(OPERATIONS.rotate_webhook_secret, async ({ params }, { caller }) =>
      JSON.stringify(await call(rotateWebhookSecret, caller, idOf(params))),
    ),
    list_webhook_deliveries: handler(OPERATIONS.list_webhook_deliveries, async ({ params, query }, { caller }) => {
      const input = { ...pageInput(query), webhook_id: idOf(params), status: query.status ?? null }
      return renderPage(await call(listDeliveries, caller, input), (delivery) => JSON.stringify(delivery))
    }),
    get_webhook_delivery: handler(OPERATIONS.get_webhook_delivery, async ({ params }, { caller }) =>
      taggedReply(JSON.stringify(await call(getDelivery, caller, keyOf(params)))),
    ),
    resend_webhook_delivery: handler(OPERATIONS.resend_webhook_delivery, async ({ params }, { caller }) =>
      JSON.stringify(await call(resendDelivery, caller, keyOf(params))),
    ),
  }
}

type FilterInput = {
  readonly event_types?: readonly string[] | null
  readonly category?: EventCategory | null
  readonly sandbox_id?: string | null
  readonly actor?: string | null
}

/** The filters that a body has. */
function readFilter({ event_types, category, sandbox_id, actor }: FilterInput): Partial<WebhookFilter> {
  return {
    ...(event_types === undefined
      ? {}
      : {
          event_types: event_types?.map((type, index) => readEventType(`event_types[${String(index)}]`, type)) ?? null,
        }),
    ...(category === undefined ? {} : { category }),
    ...(sandbox_id === undefined ? {} : { sandbox_id: sandbox_id?.toLowerCase() ?? null }),
    ...(actor === undefined ? {} : { actor: actor === null ? null : readActor('actor', actor) }),
  }
}

function idOf({ webhook_id }: { readonly webhook_id: string }): WebhookId {
  return asId<WebhookId>(webhook_id.toLowerCase())
}

function keyOf(params: { readonly webhook_id: string; readonly delivery_id: string }) {
  return { webhook_id: idOf(params), id: asId<EventId>(params.delivery_id.toLowerCase()) }
}
