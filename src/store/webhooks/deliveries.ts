/** The deliveries of webhooks. `migrations/0036_webhooks.sql` explains their columns. */
import type { EventId, OrgId, WebhookId } from '../../domain/ids.ts'
import type { MessageEvent } from '../../domain/webhooks/message.ts'
import type { Attempt, Delivery, DeliveryStatus } from '../../domain/webhooks/webhook.ts'
import { bigint, columnList, integer, text, timestamptz, uuid } from '../postgres/column-list.ts'
import type { Queryable } from '../postgres/database.ts'

/** The event of a delivery. Null: it is no longer kept. */
type WithEvent = { readonly event: MessageEvent | null }

const EVENT = `e.event_type, e.timestamp AS event_at, e.category, e.actor, e.payload`
type EventColumns = {
  readonly event_type: string | null
  readonly event_at: Date
  readonly category: string
  readonly actor: unknown
  readonly payload: unknown
}

function toEvent(id: string, org_id: string, row: EventColumns): MessageEvent | null {
  const { event_type, event_at, category, actor, payload } = row
  return event_type === null ? null : { id, org_id, timestamp: event_at, category, event_type, actor, payload }
}

/** Which deliveries a page has: of one webhook, and of one status. Null: of any. */
type PageOf = { readonly org_id: OrgId; readonly webhook_id: WebhookId; readonly status: DeliveryStatus | null }

type Row = Omit<Delivery, 'event_type' | 'request_body'> & EventColumns
export type ListedDelivery = Omit<Delivery, 'event_type' | 'request_body'> & WithEvent

const COLUMNS = `d.id, d.status, d.attempts, d.last_attempt_at, d.next_attempt_at, d.duration_ms, d.reply_status, d.reply_body, d.error,
  d.created_at, ${EVENT}`
const WITH_EVENTS = 'webhook_deliveries d LEFT JOIN events e ON e.org_id = d.org_id AND e.id = d.id'

function toListed(org: OrgId, row: Row): ListedDelivery {
  const { event_type, event_at, category, actor, payload, ...delivery } = row
  return { ...delivery, event: toEvent(row.id, org, { event_type, event_at, category, actor, payload }) }
}

/** The first `count` deliveries after the one with the id `after`, those of the newest events first. */
export async function page(
  q: Queryable,
  { org_id, webhook_id, status }: PageOf,
  { after, count }: { readonly after: string | null; readonly count: number },
): Promise<readonly ListedDelivery[]> {
  const { rows } = await q.query<Row>({
    name: 'webhookDeliveries.page',
    text: `SELECT ${COLUMNS} FROM ${WITH_EVENTS} WHERE d.org_id = $1 AND d.webhook_id = $2 AND ($3::text IS NULL OR d.status = $3)
             AND ($4::uuid IS NULL OR d.id < $4) ORDER BY d.id DESC LIMIT $5`,
    values: [org_id, webhook_id, status, after, count],
  })
  return rows.map((row) => toListed(org_id, row))
}

/** A delivery of a webhook, or null. */
export async function find(
  q: Queryable,
  org: OrgId,
  { webhook_id, id }: { readonly webhook_id: WebhookId; readonly id: EventId },
): Promise<ListedDelivery | null> {
  const { rows } = await q.query<Row>({
    name: 'webhookDeliveries.find',
    text: `SELECT ${COLUMNS} FROM ${WITH_EVENTS} WHERE d.org_id = $1 AND d.webhook_id = $2 AND d.id = $3`,
    values: [org, webhook_id, id],
  })
  return rows[0] === undefined ? null : toListed(org, rows[0])
}

/**
 * Lets a delivery be sent again at once. One that has ended waits for no other and delays none: it has a lane of its own. Returns false if
 * the webhook has none with this id.
 */
export async function resend(
  tx: Queryable,
  org: OrgId,
  { webhook_id, id }: { readonly webhook_id: WebhookId; readonly id: EventId },
): Promise<boolean> {
  const { rowCount } = await tx.query({
    name: 'webhookDeliveries.resend',
    text: `UPDATE webhook_deliveries SET status = 'waiting', tried_since = NULL, next_attempt_at = NULL,
             lane = CASE WHEN status = 'waiting' THEN lane ELSE id END
           WHERE org_id = $1 AND webhook_id = $2 AND id = $3`,
    values: [org, webhook_id, id],
  })
  return rowCount === 1
}

/** Lets the failed deliveries that are tried again be tried at once, for as long as new ones. */
export async function retryAtOnce(tx: Queryable, org: OrgId, webhook: WebhookId): Promise<void> {
  await tx.query({
    name: 'webhookDeliveries.retryAtOnce',
    text: `UPDATE webhook_deliveries SET tried_since = NULL, next_attempt_at = NULL
           WHERE org_id = $1 AND webhook_id = $2 AND status = 'waiting' AND tried_since IS NOT NULL`,
    values: [org, webhook],
  })
}

/** The webhooks that have something to send and are not paused. Reads all organizations. */
export async function webhooksWithWork(q: Queryable): Promise<readonly WebhookId[]> {
  const { rows } = await q.query<{ readonly id: WebhookId }>({
    name: 'webhookDeliveries.webhooksWithWork',
    text: `SELECT w.id FROM webhooks w WHERE w.paused_at IS NULL
             AND EXISTS (SELECT FROM webhook_deliveries d WHERE d.webhook_id = w.id AND d.status = 'waiting')`,
  })
  return rows.map(({ id }) => id)
}

/** A position among the deliveries of a webhook. */
export type Place = { readonly place: number; readonly id: EventId }

/** A delivery to send. */
export type WaitingDelivery = Place &
  WithEvent & {
    readonly webhook_id: WebhookId
    readonly lane: string
    readonly tried_since: Date | null
    readonly next_attempt_at: Date | null
  }

/** What is read of a webhook: at most `count` deliveries after `after`. */
export type Wanted = { readonly webhook_id: WebhookId; readonly after: Place; readonly count: number }

const wantedColumns = columnList<Wanted>({
  webhook_id: uuid(({ webhook_id }) => webhook_id),
  place: bigint(({ after }) => after.place),
  id: uuid(({ after }) => after.id),
  count: integer(({ count }) => count),
})

/**
 * The next deliveries of several webhooks, those of each in its order. What follows a failed delivery in its lane is left out. Reads all
 * organizations.
 */
export async function waiting(q: Queryable, wanted: readonly Wanted[]): Promise<readonly WaitingDelivery[]> {
  type Found = Omit<WaitingDelivery, 'event'> & { readonly org_id: OrgId } & EventColumns
  const { rows } = await q.query<Found>({
    name: 'webhookDeliveries.waiting',
    text: `SELECT d.webhook_id, d.id, d.org_id, d.lane, d.place, d.tried_since, d.next_attempt_at, ${EVENT}
           FROM ${wantedColumns.unnest({ alias: 'c', first: 1 })}
           CROSS JOIN LATERAL (
             SELECT * FROM webhook_deliveries w
             WHERE w.webhook_id = c.webhook_id AND w.status = 'waiting' AND (w.place, w.id) > (c.place, c.id)
               AND NOT EXISTS (SELECT FROM webhook_deliveries b WHERE b.webhook_id = w.webhook_id AND b.lane = w.lane
                 AND b.status = 'waiting' AND b.next_attempt_at IS NOT NULL AND b.id <> w.id)
             ORDER BY w.place, w.id LIMIT c.count) d
           LEFT JOIN events e ON e.id = d.id
           ORDER BY d.webhook_id, d.place, d.id`,
    values: wantedColumns.valuesOf(wanted),
  })
  return rows.map(({ org_id, event_type, event_at, category, actor, payload, ...row }) => {
    const event = toEvent(row.id, org_id, { event_type, event_at, category, actor, payload })
    return { ...row, event }
  })
}

/** What an attempt changed. */
export type AttemptResult = Attempt & {
  readonly webhook_id: WebhookId
  readonly id: EventId
  readonly status: DeliveryStatus
  readonly tried_since: Date
  readonly at: Date
  readonly next_attempt_at: Date | null
}

const resultColumns = columnList<AttemptResult>({
  webhook_id: uuid(({ webhook_id }) => webhook_id),
  id: uuid(({ id }) => id),
  status: text(({ status }) => status),
  tried_since: timestamptz(({ tried_since }) => tried_since),
  at: timestamptz(({ at }) => at),
  next_attempt_at: timestamptz(({ next_attempt_at }) => next_attempt_at),
  duration_ms: bigint(({ duration_ms }) => duration_ms),
  reply_status: integer(({ reply_status }) => reply_status),
  reply_body: text(({ reply_body }) => reply_body),
  error: text(({ error }) => error),
})

/** Writes the results of attempts. */
export async function recordResults(tx: Queryable, results: readonly AttemptResult[]): Promise<void> {
  await tx.query({
    name: 'webhookDeliveries.recordResults',
    text: `UPDATE webhook_deliveries d SET status = r.status, attempts = d.attempts + 1, tried_since = r.tried_since,
             last_attempt_at = r.at, next_attempt_at = r.next_attempt_at, duration_ms = r.duration_ms::integer,
             reply_status = r.reply_status, reply_body = r.reply_body, error = r.error
           FROM ${resultColumns.unnest({ alias: 'r', first: 1 })}
           WHERE d.webhook_id = r.webhook_id AND d.id = r.id`,
    values: resultColumns.valuesOf(results),
  })
}
