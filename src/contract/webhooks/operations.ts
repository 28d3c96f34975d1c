import { Type } from 'typebox'
import { EVENT_CATEGORIES, EVENT_TYPES } from '../../domain/events/event-types.ts'
import { DESCRIPTION_MAX_CHARS, DELIVERY_STATUSES, PAUSE_REASONS } from '../../domain/webhooks/webhook.ts'
import {
  DateTime, int32, int64, MessageReply, nullable, pageOf, pageQuery, requestObject, stringEnum, Uuid,
} from '../common.ts' // prettier-ignore
import { defineOperation, jsonReply, taggedReply, type Operation } from '../operation.ts'

/** Webhooks: URLs that get the events of the organization. */

const instant = (description: string) => nullable(Type.Unsafe<string>({ ...DateTime, description }))

const url = Type.String({ description: 'Where events are sent to, by POST.' })
const description = Type.String({ description: `A note of at most ${String(DESCRIPTION_MAX_CHARS)} characters.` })
const eventTypes = nullable(
  Type.Array(Type.String(), {
    minItems: 1,
    maxItems: Object.keys(EVENT_TYPES).length,
    uniqueItems: true,
    description: 'Only events of these types. Null: of any type.',
  }),
)
const category = nullable(stringEnum(EVENT_CATEGORIES, { description: 'Only events of this category. Null: of any.' }))
const sandbox = nullable(
  Type.String({ format: 'uuid', description: 'Only events of this sandbox. Null: of any, and those of none.' }),
)
const actor = nullable(
  Type.String({ description: 'Only events that this actor caused, as in the list of events. Null: any.' }),
)
const filters = { event_types: eventTypes, category, sandbox_id: sandbox, actor }
const paused = Type.Boolean({
  description: 'Whether nothing is sent. What would have been sent waits until the webhook resumes.',
})

const fields = {
  id: Uuid,
  url,
  description,
  ...filters,
  paused,
  paused_at: instant('When it was paused. Null: it is not.'),
  pause_reason: nullable(
    stringEnum(PAUSE_REASONS, {
      description:
        'Why it is paused. `requested`: by a request. `gone`: the endpoint answered 410. `failing`: a delivery failed for three days.',
    }),
  ),
  created_at: DateTime,
}

export const WebhookReply = Type.Object(fields, {
  title: 'Webhook',
  description: 'A URL that gets the events of the organization as they happen.',
})

const secret = Type.String({ description: 'The secret that signs messages. It is shown only here.' })

export const CreatedWebhookReply = Type.Object(
  { ...fields, secret },
  { title: 'CreatedWebhook', description: 'A webhook, and the secret that signs its messages.' },
)

const optionalFilters = {
  event_types: Type.Optional(eventTypes),
  category: Type.Optional(category),
  sandbox_id: Type.Optional(sandbox),
  actor: Type.Optional(actor),
}

const CreateWebhookInput = requestObject(
  { url, description: Type.Optional(description), ...optionalFilters },
  { title: 'CreateWebhookInput', description: 'A webhook to create. Without filters, it gets all events.' },
)

const UpdateWebhookInput = requestObject(
  {
    url: Type.Optional(url),
    description: Type.Optional(description),
    ...optionalFilters,
    paused: Type.Optional(paused),
  },
  { title: 'UpdateWebhookInput', description: 'What to change. Absent fields stay as they are.' },
)

export const RotatedSecretReply = Type.Object(
  {
    secret,
    old_secret_expires_at: Type.Unsafe<string>({ ...DateTime, description: 'Until when the old secret signs too.' }),
  },
  { title: 'RotatedWebhookSecret', description: 'The new secret of a webhook.' },
)

const attempt = {
  duration_ms: nullable(int64({ description: 'How long the latest attempt took, in milliseconds.' })),
  reply_status: nullable(int32({ description: 'The HTTP status of the reply. Null: there was none.' })),
  reply_body: nullable(Type.String({ description: 'The first KiB of the body of the reply.' })),
  error: nullable(Type.String({ description: 'Why there was no reply. Null: there was one, or no attempt yet.' })),
}

export const WebhookTestReply = Type.Object(
  {
    delivered: Type.Boolean({ description: 'Whether the endpoint answered with a status from 200 to 299.' }),
    ...attempt,
  },
  { title: 'WebhookTest', description: 'What the endpoint answered to a test message.' },
)

export const WebhookDeliveryReply = Type.Object(
  {
    id: Type.Unsafe<string>({ ...Uuid, description: 'The id of the event, and of the message (`webhook-id`).' }),
    event_type: nullable(Type.String({ description: 'The type of the event. Null: the event is no longer kept.' })),
    status: stringEnum(DELIVERY_STATUSES, {
      description: '`waiting`: to be sent, or to be tried again. `failed`: it is not tried again.',
    }),
    attempts: int32({ description: 'How often it was sent.' }),
    last_attempt_at: instant('When it was last sent. Null: it was not.'),
    next_attempt_at: instant('When it is sent again. Null: as soon as possible, or never.'),
    ...attempt,
    created_at: DateTime,
    request_body: nullable(Type.String({ description: 'The body of the message. Null: the event is no longer kept.' })),
  },
  { title: 'WebhookDelivery', description: 'An event for a webhook, and what became of it.' },
)

const WebhookIdParams = requestObject({ webhook_id: Uuid })
const DeliveryIdParams = requestObject({ webhook_id: Uuid, delivery_id: Uuid })

const common = { tag: 'Webhooks', access: 'admin' } as const

/** The operations on webhooks. */
export const WEBHOOK_OPERATIONS = {
  create_webhook: defineOperation({
    ...common,
    id: 'create_webhook',
    method: 'POST',
    isResumable: true,
    path: '/v1/webhooks',
    summary: 'Create a webhook',
    description:
      'It gets the events that happen from then on, at least once, and those of a sandbox in their order. Messages and signatures follow the Standard Webhooks specification.',
    body: CreateWebhookInput,
    reply: taggedReply(CreatedWebhookReply, 'The webhook, with its secret.'),
    problems: ['quota_exceeded'],
  }),
  list_webhooks: defineOperation({
    ...common,
    id: 'list_webhooks',
    method: 'GET',
    path: '/v1/webhooks',
    summary: 'List the webhooks, the newest first',
    query: requestObject(pageQuery),
    reply: jsonReply(pageOf(WebhookReply, 'WebhookPage'), 'A page of webhooks, without secrets.'),
  }),
  get_webhook: defineOperation({
    ...common,
    id: 'get_webhook',
    method: 'GET',
    path: '/v1/webhooks/{webhook_id}',
    summary: 'Get a webhook',
    params: WebhookIdParams,
    reply: taggedReply(WebhookReply, 'The webhook, without its secret.'),
    problems: ['webhook_not_found'],
  }),
  update_webhook: defineOperation({
    ...common,
    id: 'update_webhook',
    method: 'PATCH',
    checksIfMatch: true,
    path: '/v1/webhooks/{webhook_id}',
    summary: 'Change, pause or resume a webhook',
    params: WebhookIdParams,
    body: UpdateWebhookInput,
    reply: taggedReply(WebhookReply, 'The webhook as it is now.'),
    problems: ['webhook_not_found'],
  }),
  delete_webhook: defineOperation({
    ...common,
    id: 'delete_webhook',
    method: 'DELETE',
    checksIfMatch: true,
    path: '/v1/webhooks/{webhook_id}',
    summary: 'Delete a webhook with its deliveries',
    params: WebhookIdParams,
    reply: jsonReply(MessageReply, 'It is deleted.'),
    problems: ['webhook_not_found'],
  }),
  test_webhook: defineOperation({
    ...common,
    id: 'test_webhook',
    method: 'POST',
    path: '/v1/webhooks/{webhook_id}/test',
    summary: 'Send a test message at once',
    description:
      'The message has the type `webhook_test`. It is no delivery, and it is sent once, also by a paused webhook.',
    params: WebhookIdParams,
    reply: jsonReply(WebhookTestReply, 'What the endpoint answered.'),
    problems: ['webhook_not_found'],
  }),
  rotate_webhook_secret: defineOperation({
    ...common,
    id: 'rotate_webhook_secret',
    method: 'POST',
    path: '/v1/webhooks/{webhook_id}/rotate-secret',
    summary: 'Give a webhook a new secret',
    description: 'For 24 hours, messages have two signatures: of the new secret and of the old one.',
    params: WebhookIdParams,
    reply: jsonReply(RotatedSecretReply, 'The new secret.'),
    problems: ['webhook_not_found', 'quota_exceeded'],
  }),
  list_webhook_deliveries: defineOperation({
    ...common,
    id: 'list_webhook_deliveries',
    method: 'GET',
    path: '/v1/webhooks/{webhook_id}/deliveries',
    summary: 'List the deliveries of a webhook, those of the newest events first',
    params: WebhookIdParams,
    query: requestObject({
      status: Type.Optional(stringEnum(DELIVERY_STATUSES, { description: 'Only deliveries with this status.' })),
      ...pageQuery,
    }),
    reply: jsonReply(pageOf(WebhookDeliveryReply, 'WebhookDeliveryPage'), 'A page of deliveries.'),
    problems: ['webhook_not_found'],
  }),
  get_webhook_delivery: defineOperation({
    ...common,
    id: 'get_webhook_delivery',
    method: 'GET',
    path: '/v1/webhooks/{webhook_id}/deliveries/{delivery_id}',
    summary: 'Get a delivery of a webhook',
    params: DeliveryIdParams,
    reply: taggedReply(WebhookDeliveryReply, 'The delivery.'),
    problems: ['webhook_not_found', 'webhook_delivery_not_found'],
  }),
  resend_webhook_delivery: defineOperation({
    ...common,
    id: 'resend_webhook_delivery',
    method: 'POST',
    path: '/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/resend',
    summary: 'Send a delivery again',
    description:
      'It is sent at once, with the same id and in no order with others; one that still waits keeps its place. A paused webhook sends it when it resumes.',
    params: DeliveryIdParams,
    reply: jsonReply(WebhookDeliveryReply, 'The delivery, which waits to be sent.'),
    problems: ['webhook_not_found', 'webhook_delivery_not_found'],
  }),
} as const satisfies Record<string, Operation>
