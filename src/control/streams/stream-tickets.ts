/**
 * Stream tickets for workers that are connected to a different server process than the client. The process that waits
 * for the stream inserts a row with its own URL. Every other process reads the rows on a notification and includes them
 * in its sync answers. The process that waits for the ticket accepts it once. The rows only tell the worker where to
 * dial.
 */
import type { StreamPurpose, StreamTicket } from '../../contract/workers/worker-protocol.ts'
import { asId, type WorkerId } from '../../domain/ids.ts'
import * as streamTickets from '../../store/streams/stream-tickets.ts'
import type { BaseDeps } from '../deps.ts'
import { STREAM_TICKETS_TOPIC, ticketTopic } from '../topics.ts'
import { runOnNotification } from '../requests/run-on-notification.ts'
import type { Replicas } from '../workers/replicas.ts'

/** How often the rows are read without a notification, in milliseconds. A lost notification costs at most this time. */
const READ_EVERY_MS = 2_000
/**
 * How long a row is valid, in milliseconds. It is many times as long as a client waits, so that a difference between
 * two processes' clocks does no harm.
 */
const EXPIRES_AFTER_MS = 60_000
/** The maximum number of rows that are read at once. A single process may wait for as many tickets. */
const TICKETS_READ_MAX = 10_000

export type StreamTicketsDeps = Pick<BaseDeps, 'db' | 'clock' | 'notifications' | 'log'> & {
  readonly replicas: Pick<Replicas, 'ownUrl' | 'urls' | 'count'>
  /** The tickets that this process itself waits for. */
  readonly ownTickets: (worker: string) => readonly StreamTicket[]
}

/** The stream tickets that a process shows to its workers: its own tickets and those of the other processes. */
export interface StreamTickets {
  /** Tells a worker of a ticket that this process waits for. */
  announce(worker: string, ticket: StreamTicket): void
  /** Withdraws a ticket that was used, or that nobody waits for any more. */
  withdraw(ticket: string): void
  /** All tickets of a worker from live processes, each with the URL to dial. Sync answers contain them. */
  openTickets(worker: string): readonly StreamTicket[]
  /** Reads the tickets of the other processes regularly until the signal aborts. Never rejects. */
  run(signal: AbortSignal): Promise<void>
}

/** Makes the tickets of a process, without any tickets at first. */
export function makeStreamTickets(deps: StreamTicketsDeps): StreamTickets {
  const { db, clock, notifications, log, replicas } = deps
  /** Tickets whose rows are in the table or being inserted. */
  const inserting = new Map<string, Promise<void>>()
  let ofOthers = new Map<string, readonly streamTickets.StreamTicketRow<StreamPurpose>[]>()

  async function insertRow(worker: WorkerId, { ticket, ...asked }: StreamTicket, url: string): Promise<void> {
    const expires_at = new Date(clock.now().getTime() + EXPIRES_AFTER_MS)
    await db.asSystem((q) => streamTickets.insert(q, { ticket, worker_id: worker, url, asked }, expires_at))
    notifications.publish([STREAM_TICKETS_TOPIC])
  }

  async function readRows(): Promise<void> {
    const before = ofOthers
    // A single process reads nothing, because no other process has tickets.
    const rows =
      replicas.count < 2
        ? []
        : await db.asSystem((q) => streamTickets.fromOtherReplicas<StreamPurpose>(q, replicas.ownUrl, TICKETS_READ_MAX))
    // Tickets of an unknown process are left out. The first read after the process becomes known returns them.
    const { urls } = replicas
    const live = rows.filter(({ url }) => urls.includes(url))
    ofOthers = Map.groupBy(live, ({ worker_id }) => worker_id)
    const known = new Set([...before.values()].flat().map(({ ticket }) => ticket))
    const fresh = live.filter(({ ticket }) => !known.has(ticket)).map(({ worker_id }) => ticketTopic(worker_id))
    if (fresh.length > 0) notifications.publish([...new Set(fresh)])
  }

  return {
    announce(worker, ticket) {
      notifications.publish([ticketTopic(worker)])
      const url = replicas.ownUrl
      if (url === null || replicas.count < 2) return
      const insertion = insertRow(asId<WorkerId>(worker), ticket, url).catch((error: unknown) => {
        log.warn({ error }, 'could not store a stream ticket for other replicas')
      })
      inserting.set(ticket.ticket, insertion)
    },
    withdraw(ticket) {
      const insertion = inserting.get(ticket)
      if (insertion === undefined) return
      inserting.delete(ticket)
      insertion
        .then(() => db.asSystem((q) => streamTickets.remove(q, ticket)))
        .catch((error: unknown) => {
          log.warn({ error }, 'could not withdraw a stream ticket; it will expire')
        })
    },
    openTickets(worker) {
      const { ownUrl } = replicas
      const own = deps.ownTickets(worker).map((ticket) => (ownUrl === null ? ticket : { ...ticket, url: ownUrl }))
      const others = ofOthers.get(worker) ?? []
      return [...own, ...others.map(({ ticket, url, asked }) => ({ ...asked, ticket, url }))]
    },
    async run(signal) {
      const readAgain = async (): Promise<void> => {
        try {
          await readRows()
        } catch (error) {
          log.warn({ error }, 'could not read the stream tickets of other replicas; will retry')
        }
      }
      await runOnNotification(
        { clock, notifications, topic: STREAM_TICKETS_TOPIC, everyMs: READ_EVERY_MS },
        readAgain,
        signal,
      )
    },
  }
}
