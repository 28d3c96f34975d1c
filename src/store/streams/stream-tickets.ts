/** Streams that a server process waits for; its worker learns of them at whichever process it syncs with. */
import type { WorkerId } from '../../domain/ids.ts'
import type { Queryable } from '../postgres/database.ts'

/** A ticket with the process that waits, by its URL. `asked` says what for; it goes through here as it is. */
export type StreamTicketRow<Asked> = {
  readonly ticket: string
  readonly worker_id: WorkerId
  readonly url: string
  readonly asked: Asked
}

/** Leaves a ticket for a worker. */
export async function insert<Asked>(q: Queryable, left: StreamTicketRow<Asked>, expires_at: Date): Promise<void> {
  await q.query({
    name: 'streamTickets.insert',
    text: 'INSERT INTO stream_tickets (ticket, worker_id, url, asked, expires_at) VALUES ($1, $2, $3, $4, $5)',
    values: [left.ticket, left.worker_id, left.url, JSON.stringify(left.asked), expires_at],
  })
}

/** Takes a ticket back: it was used, or nobody waits any more. May be repeated. */
export async function remove(q: Queryable, ticket: string): Promise<void> {
  await q.query({
    name: 'streamTickets.remove',
    text: 'DELETE FROM stream_tickets WHERE ticket = $1',
    values: [ticket],
  })
}

/** The tickets that other processes than the one at `url` have left, at most `limit`. */
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

/** Removes what outlived its time by `now`: a process that died took nothing back. Answers how many. */
export async function removeExpired(q: Queryable, now: Date, limit: number): Promise<number> {
  const { rowCount } = await q.query({
    name: 'streamTickets.removeExpired',
    text: `DELETE FROM stream_tickets WHERE ticket IN (SELECT ticket FROM stream_tickets WHERE expires_at < $1 LIMIT $2)`,
    values: [now, limit],
  })
  return rowCount
}
