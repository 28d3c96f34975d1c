/** Webhooks: URLs that get the events of an organization as they happen. */
import type { EventCategory, EventType } from '../events/event-types.ts'
import type { EventId, OrgId, WebhookId } from '../ids.ts'

/** Which events a webhook gets. Null: any. */
export type WebhookFilter = {
  readonly event_types: readonly EventType[] | null
  readonly category: EventCategory | null
  readonly sandbox_id: string | null
  /** As in the list of events: the id of a key or user, or the code of a system actor. */
  readonly actor: string | null
}

/**
 * Why a webhook is paused. `requested`: by a request. `gone`: its endpoint answered 410. `failing`: a delivery failed for as
 * long as deliveries are tried.
 */
export const PAUSE_REASONS = ['requested', 'gone', 'failing'] as const
export type PauseReason = (typeof PAUSE_REASONS)[number]

/** A webhook as its organization sees it: without its secret. */
export type Webhook = WebhookFilter & {
  readonly id: WebhookId
  readonly url: string
  readonly description: string
  readonly paused: boolean
  readonly paused_at: Date | null
  readonly pause_reason: PauseReason | null
  readonly created_at: Date
}

export const DELIVERY_STATUSES = ['waiting', 'delivered', 'failed'] as const
export type DeliveryStatus = (typeof DELIVERY_STATUSES)[number]

/** The latest attempt of a delivery. */
export type Attempt = {
  readonly duration_ms: number | null
  /** The status of the reply. Null: there was none. */
  readonly reply_status: number | null
  /** The beginning of the reply's body. */
  readonly reply_body: string | null
  /** Why there was no reply. */
  readonly error: string | null
}

/** A delivery as its organization sees it. */
export type Delivery = Attempt & {
  /** The id of the event, which is also the id of the message. */
  readonly id: EventId
  /** Null: the event is no longer kept. */
  readonly event_type: string | null
  readonly status: DeliveryStatus
  readonly attempts: number
  readonly last_attempt_at: Date | null
  /** When it is tried again after a failure. Null: it has not failed, or is not tried again. */
  readonly next_attempt_at: Date | null
  readonly created_at: Date
  /** The body of the request. Null: the event is no longer kept. */
  readonly request_body: string | null
}

/** The most webhooks of an organization, whatever its plan says. */
export const WEBHOOKS_MAX = 100
export const URL_MAX_CHARS = 2_048
export const DESCRIPTION_MAX_CHARS = 512
/** How long the old secret signs too after a rotation. */
export const OLD_SECRET_MS = 24 * 60 * 60 * 1000
/** The most old secrets that sign at the same time. */
export const OLD_SECRETS_MAX = 4
/** How much of a reply's body is stored, in bytes. */
export const REPLY_BODY_BYTES = 1_024

/** The bound of deliveries of a webhook that wait. The oldest beyond it are dropped. */
export const WAITING_MAX = 100_000
/** How many deliveries of a webhook that have ended are kept, and for how long any is. */
export const ENDED_KEPT = 10_000
export const DELIVERY_KEPT_DAYS = 30

/** The seal context of a webhook's secrets. It ties them to their webhook. */
export function webhookSealContext(org: OrgId, id: WebhookId): string {
  return `webhook:${org}:${id}`
}

/** The host of a webhook's URL, for events and logs: the rest of the URL may have a secret. */
export function hostOfWebhook({ url }: Pick<Webhook, 'url'>): string {
  return URL.parse(url)?.host ?? ''
}
