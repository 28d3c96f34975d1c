/**
 * The events of a range of transactions. Transactions end in another order than they begin, and an event is visible only once
 * its transaction has ended. A window ends before the oldest transaction that still runs, so nothing is added to it later.
 *
 * Within a window, events are in the order of their ids. Two transactions that change one sandbox wait for each other, and the
 * ids of their events follow that order (`event-ids.ts`). Their own numbers may not: but both are in the same window then, because it can't end between
 * two transactions of which the one with the lower number was still running when the other ended.
 */
import type { OrgId } from '../../domain/ids.ts'
import { NIL_UUID } from '../../lib/uuid.ts'
import type { Queryable } from '../postgres/database.ts'
import { EVENT_COLUMNS, type EventRow } from './events.ts'

/** An event, with what filters need. */
export type WindowEvent = EventRow & {
  readonly xact: bigint
  readonly sandbox_id: string | null
  /** The id of the API key, user or SSH key that caused it, or the code of a system actor. Null: the service itself. */
  readonly actor_key: string | null
}

type Row = EventRow & { readonly xact: string; readonly sandbox_id: string | null; readonly actor_key: string | null }

const COLUMNS = `${EVENT_COLUMNS}, xact::text, sandbox_id, actor_key`

/**
 * What counts the transactions: the PostgreSQL server, its timeline and this table. A server that was promoted or went back in time
 * gives numbers again that it had given before, and a table that was restored has events of another count.
 */
const EPOCH = `(SELECT system_identifier FROM pg_control_system())::text
  || '-' || ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint || '-' || 'events'::regclass::oid`

/** The end of the newest complete window. */
export async function horizon(q: Queryable): Promise<{ readonly epoch: string; readonly xid: bigint }> {
  const { rows } = await q.query<{ readonly epoch: string; readonly xid: string }>({
    name: 'eventWindows.horizon',
    text: `SELECT ${EPOCH} AS epoch, pg_snapshot_xmin(pg_current_snapshot())::text AS xid`,
  })
  const [row] = rows
  if (row === undefined) throw new Error('the database named no horizon')
  return { epoch: row.epoch, xid: BigInt(row.xid) }
}

/** Which transactions had ended at a moment. */
export type Snapshot = { readonly end: bigint; readonly hasEnded: (xact: bigint) => boolean }

/** The transactions that have ended now. */
export async function snapshot(q: Queryable): Promise<Snapshot> {
  const { rows } = await q.query<{ readonly end: string; readonly running: readonly string[] }>({
    name: 'eventWindows.snapshot',
    text: `SELECT pg_snapshot_xmax(s)::text AS end, ARRAY(SELECT pg_snapshot_xip(s)::text) AS running
           FROM pg_current_snapshot() s`,
  })
  const [row] = rows
  if (row === undefined) throw new Error('the database has no snapshot')
  const [end, running] = [BigInt(row.end), new Set(row.running.map(BigInt))]
  return { end, hasEnded: (xact) => xact < end && !running.has(xact) }
}

/**
 * The newest complete window from `from` on, with the events of organizations. Null events: there are more than `limit`. Reads
 * other organizations, so `q` must be the system's.
 */
export async function newest(
  q: Queryable,
  { orgs, from, limit }: { readonly orgs: readonly OrgId[]; readonly from: bigint; readonly limit: number },
): Promise<{ readonly epoch: string; readonly to: bigint; readonly events: readonly WindowEvent[] | null }> {
  type Head = { readonly epoch: string; readonly horizon: string }
  const { rows } = await q.query<Head & { [Column in keyof Row]: Row[Column] | null }>({
    name: 'eventWindows.newest',
    // One statement has one snapshot, so the horizon and the events belong together.
    text: `SELECT h.epoch, h.xid::text AS horizon, e.*
           FROM (SELECT ${EPOCH} AS epoch, pg_snapshot_xmin(pg_current_snapshot()) AS xid) h
           LEFT JOIN LATERAL (
             SELECT ${COLUMNS} FROM events WHERE org_id = ANY($1::uuid[]) AND xact >= $2::text::xid8 AND xact < h.xid
             LIMIT $3) e ON true
           ORDER BY e.id`,
    values: [orgs, String(from), limit + 1],
  })
  const [head] = rows
  if (head === undefined) throw new Error('the database named no horizon')
  const events = rows.flatMap((row) => (row.id === null ? [] : [toEvent(row as unknown as Row)]))
  return { epoch: head.epoch, to: BigInt(head.horizon), events: events.length > limit ? null : events }
}

/** The first `count` events of a complete window, after an event of it. Null: from its first one. */
export async function page(
  q: Queryable,
  org: OrgId,
  window: { readonly from: bigint; readonly to: bigint; readonly after: string | null },
  count: number,
): Promise<readonly WindowEvent[]> {
  const { rows } = await q.query<Row>({
    name: 'eventWindows.page',
    text: `SELECT ${COLUMNS} FROM events
           WHERE org_id = $1 AND xact >= $2::text::xid8 AND xact < $3::text::xid8 AND id > $4
           ORDER BY id LIMIT $5`,
    values: [org, String(window.from), String(window.to), window.after ?? NIL_UUID, count],
  })
  return rows.map(toEvent)
}

function toEvent(row: Row): WindowEvent {
  return { ...row, xact: BigInt(row.xact) }
}
