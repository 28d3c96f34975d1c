/**
 * Tickets of the streams that server processes wait for. A worker receives its tickets from any process with which it
 * syncs.
 */
import type { WorkerId } from '../../domain/ids.ts'
import type { Queryable } from '../postgres/database.ts'

/** A ticket, with the URL of the process that waits. `asked` is the requested stream. It is stored unchanged. */
export type StreamTicketRow<Asked> = {
  readonly ticket: string
  readonly worker_id: WorkerId
  readonly url: string
  readonly asked: Asked
}

/** Stores a ticket for a worker. */
export async function insert<Asked>(q: Queryable, row: StreamTicketRow<Asked>, expires_at: Date): Promise<void> {
  await q.query({
    name: 'streamTickets.insert',
    text: 'INSERT INTO stream_tickets (ticket, worker_id, url, asked, expires_at) VALUES ($1, $2, $3, $4, $5)',
    values: [row.ticket, row.worker_id, row.url, JSON.stringify(row.asked), expires_at],
  })
}

/** Deletes a ticket that was used, or whose process no longer waits. May be repeated. */
export async function remove(q: Queryable, ticket: string): Promise<void> {
  await q.query({
    name: 'streamTickets.remove',
    text: 'DELETE FROM stream_tickets WHERE ticket = $1',
    values: [ticket],
  })
}

/** At most `limit` tickets of processes other than the one at `url`. */
export async function fromOtherReplicas<Asked>(
  q: Queryable,
  url: string | null,
  limit: number,
): Promise<readonly StreamTicketRow<Asked>[]> {
  const { rows } = await q.query<StreamTicketRow<Asked>>({
    name: 'streamTickets.fromOtherReplicas',
    text: 'SELECT ticket, worker_id, url, asked FROM stream_tickets WHERE url IS DISTINCT FROM $1 LIMIT $2',
    values: [url, limit],
  })
  return rows
}

/**
 * Deletes up to `limit` tickets that expired before `now`, left by processes that died. Returns the number of deleted
 * tickets.
 */
export async function removeExpired(q: Queryable, now: Date, limit: number): Promise<number> {
  const { rowCount } = await q.query({
    name: 'streamTickets.removeExpired',
    text: `DELETE FROM stream_tickets WHERE ticket IN (SELECT ticket FROM stream_tickets WHERE expires_at < $1 LIMIT $2)`,
    values: [now, limit],
  })
  return rowCount
}
