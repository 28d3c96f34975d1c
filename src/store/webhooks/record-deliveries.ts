/**
 * Events become deliveries by the windows of `src/store/events/event-windows.ts`: each window is complete, so none is missed, and the
 * deliveries of a window are in the order of their events.
 */
import type { WebhookId } from '../../domain/ids.ts'
import { NIL_UUID } from '../../lib/uuid.ts'
import type { Queryable } from '../postgres/database.ts'

/** How far events have become deliveries. `windowEnd` and `after` are null between two windows. */
export type Progress = {
  readonly epoch: string
  readonly done: bigint
  readonly windowEnd: bigint | null
  readonly after: string | null
  /** After a restore: events from then on may not have become deliveries. */
  readonly since: Date | null
}

/**
 * What counts the transactions: the PostgreSQL server and this table. The position is in the same database, so it goes back in time
 * together with the transactions; only a restore of rows into another database leaves it with another count.
 */
const EPOCH = `(SELECT system_identifier FROM pg_control_system())::text || '-' || 'webhook_progress'::regclass::oid`

/** The end of the newest complete window, and the stored progress. Null: there is none yet. */
export async function read(
  q: Queryable,
): Promise<{ readonly epoch: string; readonly horizon: bigint; readonly progress: Progress | null }> {
  type Row = {
    readonly now_epoch: string
    readonly horizon: string
    readonly epoch: string | null
    readonly done: string
    readonly window_end: string | null
    readonly after_id: string | null
    readonly since: Date | null
  }
  const { rows } = await q.query<Row>({
    name: 'recordDeliveries.read',
    text: `SELECT ${EPOCH} AS now_epoch, pg_snapshot_xmin(pg_current_snapshot())::text AS horizon, p.epoch, p.done::text,
             p.window_end::text, p.after_id, p.since
           FROM (VALUES (true)) v LEFT JOIN webhook_progress p ON true`,
  })
  const [row] = rows
  if (row === undefined) throw new Error('the database named no horizon')
  const { now_epoch, horizon, epoch, done, window_end, after_id: after, since } = row
  const windowEnd = window_end === null ? null : BigInt(window_end)
  const progress = epoch === null ? null : { epoch, done: BigInt(done), windowEnd, after, since }
  return { epoch: now_epoch, horizon: BigInt(horizon), progress }
}

/** What a look tells: the end of the newest complete window, whether it has events for webhooks, and the most webhooks of an organization. */
type Look = { readonly horizon: bigint; readonly hasEvents: boolean; readonly webhooksOfOrg: number }

/** Looks for events from a transaction on, of the organizations that have webhooks. */
export async function look(q: Queryable, from: bigint): Promise<Look> {
  type Row = { readonly horizon: string; readonly has_events: boolean; readonly webhooks_of_org: number }
  const { rows } = await q.query<Row>({
    name: 'recordDeliveries.look',
    text: `SELECT h.xid::text AS horizon, o.most AS webhooks_of_org, EXISTS (
             SELECT FROM events e WHERE e.org_id = ANY(o.ids) AND e.xact >= $1::text::xid8 AND e.xact < h.xid) AS has_events
           FROM (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS xid) h,
             (SELECT array_agg(org_id) AS ids, coalesce(max(count), 0)::integer AS most
              FROM (SELECT org_id, count(*) AS count FROM webhooks GROUP BY org_id) c) o`,
    values: [String(from)],
  })
  const [row] = rows
  if (row === undefined) throw new Error('the database named no horizon')
  return { horizon: BigInt(row.horizon), hasEvents: row.has_events, webhooksOfOrg: row.webhooks_of_org }
}

/** Stores the progress. */
export async function save(
  tx: Queryable,
  { epoch, done, windowEnd, after, since }: Progress,
  now: Date,
): Promise<void> {
  await tx.query({
    name: 'recordDeliveries.save',
    text: `INSERT INTO webhook_progress (epoch, done, window_end, after_id, since, saved_at)
           VALUES ($1, $2::text::xid8, $3::text::xid8, $4, $5, $6)
           ON CONFLICT (only_row) DO UPDATE SET epoch = excluded.epoch, done = excluded.done, window_end = excluded.window_end,
             after_id = excluded.after_id, since = excluded.since, saved_at = excluded.saved_at`,
    values: [epoch, String(done), windowEnd === null ? null : String(windowEnd), after, since, now],
  })
}

/**
 * Adapts to another count of transactions, after a restore. What waits keeps its order, and comes before all that follows. Returns when
 * the progress was last stored: later events may not have become deliveries.
 */
export async function rebase(tx: Queryable): Promise<Date> {
  await tx.query({ text: 'UPDATE webhooks SET begins = NULL, created_xact = NULL' })
  await tx.query({
    text: `UPDATE webhook_deliveries SET place = place - 1 - (SELECT max(place) FROM webhook_deliveries) WHERE status = 'waiting'`,
  })
  const { rows } = await tx.query<{ readonly saved_at: Date }>({ text: 'SELECT saved_at FROM webhook_progress' })
  return rows[0]?.saved_at ?? new Date(0)
}

/** A part of a window: the next `limit` events after one of them. */
type Part = {
  readonly from: bigint
  readonly to: bigint
  readonly after: string | null
  readonly since: Date | null
  readonly limit: number
}

/** What was recorded. `read`: how many events the part had, and the last of them. */
type Recorded = { readonly read: number; readonly last: string | null; readonly webhooks: readonly WebhookId[] }

/** SQL: what decides about an event `p`. */
const EVENT = `id, org_id, sandbox_id, event_type, category, coalesce(actor_key, 'sandyard') AS actor, xact, timestamp`
const LANE = 'coalesce(p.sandbox_id, p.org_id)'

/** SQL: whether an event `p` is for a webhook `w`. `since`: see `Progress`. */
function isFor(since: string): string {
  return `(w.event_types IS NULL OR p.event_type = ANY(w.event_types))
               AND (w.category IS NULL OR p.category = w.category)
               AND (w.sandbox_id IS NULL OR p.sandbox_id = w.sandbox_id)
               AND (w.actor IS NULL OR p.actor = w.actor)
               AND (w.begins IS NULL OR NOT pg_visible_in_snapshot(p.xact, w.begins))
               AND p.xact IS DISTINCT FROM w.created_xact
               AND (${since} IS NULL OR (p.timestamp >= ${since} AND p.timestamp > w.created_at))`
}

/** Keeps others from making deliveries until the transaction ends. Lock it before a webhook. */
export async function lockRecording(tx: Queryable): Promise<void> {
  await tx.query({ text: `SELECT pg_advisory_xact_lock(hashtext('sandyard: webhook deliveries'))` })
}

/**
 * Makes deliveries of the events of now and before, by the filters that a webhook has. It then begins anew, so that others apply to later
 * events alone. Their windows end later than the oldest transaction of now, which is therefore the place. Call `lockRecording` first. Reads
 * what belongs to the system.
 */
export async function recordDue(tx: Queryable, webhook: WebhookId, now: Date): Promise<void> {
  await tx.query({
    name: 'recordDeliveries.recordDue',
    text: `WITH begun AS (UPDATE webhooks SET begins = pg_current_snapshot() WHERE id = $1)
           INSERT INTO webhook_deliveries (webhook_id, id, org_id, lane, place, created_at)
           SELECT w.id, p.id, p.org_id, ${LANE}, pg_snapshot_xmin(pg_current_snapshot())::text::bigint, $2
           FROM webhooks w LEFT JOIN webhook_progress g ON true, LATERAL (
             SELECT ${EVENT} FROM events WHERE org_id = w.org_id AND xact >= coalesce(g.done, '0')) p
           WHERE w.id = $1 AND ${isFor('g.since')}
           ON CONFLICT (webhook_id, id) DO NOTHING`,
    values: [webhook, now],
  })
}

/**
 * Makes deliveries of a part of a complete window, for the webhooks whose filters the events match. May be repeated. Reads all
 * organizations.
 */
export async function record(tx: Queryable, { from, to, after, since, limit }: Part, now: Date): Promise<Recorded> {
  await lockRecording(tx)
  const { rows } = await tx.query<Recorded>({
    name: 'recordDeliveries.record',
    text: `WITH part AS MATERIALIZED (
             SELECT ${EVENT} FROM events WHERE org_id = ANY(ARRAY(SELECT DISTINCT org_id FROM webhooks))
               AND xact >= $1::text::xid8 AND xact < $2::text::xid8 AND id > $3
             ORDER BY id LIMIT $4),
           made AS (
             INSERT INTO webhook_deliveries (webhook_id, id, org_id, lane, place, created_at)
             SELECT w.id, p.id, p.org_id, ${LANE}, $2::text::bigint, $5
             FROM part p JOIN webhooks w ON w.org_id = p.org_id AND ${isFor('$6::timestamptz')}
             ON CONFLICT (webhook_id, id) DO NOTHING RETURNING webhook_id)
           SELECT (SELECT count(*) FROM part) AS read, (SELECT id FROM part ORDER BY id DESC LIMIT 1) AS last,
             ARRAY(SELECT DISTINCT webhook_id FROM made) AS webhooks`,
    values: [String(from), String(to), after ?? NIL_UUID, limit, now, since],
  })
  return rows[0] ?? { read: 0, last: null, webhooks: [] }
}
