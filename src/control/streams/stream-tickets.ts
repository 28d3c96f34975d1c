/**
 * Tickets for workers that stand by at another server process than the one that a client came to. The one that waits
 * leaves a row with its own URL; each of the others reads all rows when it is woken, and its answers to syncs show them.
 * A ticket is accepted once, by who waits for it: the rows only say where to dial.
 */
import type { StreamPurpose, StreamTicket } from '../../contract/workers/worker-protocol.ts'
import { asId, type WorkerId } from '../../domain/ids.ts'
import * as streamTickets from '../../store/streams/stream-tickets.ts'
import type { ControlDeps } from '../deps.ts'
import { ticketTopic } from './open-worker-stream.ts'
import { runOnNotification } from '../requests/run-on-notification.ts'
import type { Replicas } from '../workers/replicas.ts'

/** The topic of those who read what others have left. */
const TICKETS_TOPIC = 'stream_tickets'
/** What a lost wake-up costs, in milliseconds. */
const READ_EVERY_MS = 2_000
/** When a row is removed for sure: many times what a client waits, so that clocks need not agree. */
const EXPIRES_AFTER_MS = 60_000
/** The most that are read at once; as many as one process may wait for. */
const TICKETS_READ_MAX = 10_000

export type StreamTicketsDeps = Pick<ControlDeps, 'db' | 'clock' | 'notifications' | 'log'> & {
  readonly replicas: Pick<Replicas, 'ownUrl' | 'urls' | 'count'>
  /** The tickets that this process waits for itself. */
  readonly ownTickets: (worker: string) => readonly StreamTicket[]
}

/** What a process shows workers of its own tickets and of those of the others; `openTickets` is for the answers to syncs. */
export interface StreamTickets {
  /** Has a worker learn of a ticket for which this process waits. */
  announce(worker: string, ticket: StreamTicket): void
  /** Takes it back: it was used, or nobody waits any more. */
  withdraw(ticket: string): void
  /** All tickets of a worker, each with where it is to be dialled; of processes that live only. */
  openTickets(worker: string): readonly StreamTicket[]
  /** Reads what the others leave, until the signal. Never rejects. */
  run(signal: AbortSignal): Promise<void>
}

/** The tickets as one process knows them. */
export function makeStreamTickets(deps: StreamTicketsDeps): StreamTickets {
  const { db, clock, notifications, log, replicas } = deps
  /** Rows on their way to the table, or there. */
  const left = new Map<string, Promise<void>>()
  let ofOthers = new Map<string, readonly streamTickets.StreamTicketRow<StreamPurpose>[]>()

  async function leave(worker: WorkerId, { ticket, ...asked }: StreamTicket, url: string): Promise<void> {
    const expires_at = new Date(clock.now().getTime() + EXPIRES_AFTER_MS)
    await db.asSystem((q) => streamTickets.insert(q, { ticket, worker_id: worker, url, asked }, expires_at))
    notifications.publish([TICKETS_TOPIC])
  }

  async function look(): Promise<void> {
    const seen = ofOthers
    // While nobody serves beside this process, nobody leaves anything.
    const rows =
      replicas.count < 2
        ? []
        : await db.asSystem((q) => streamTickets.fromOtherReplicas<StreamPurpose>(q, replicas.ownUrl, TICKETS_READ_MAX))
    // A ticket of a process that is not known yet is shown by the look after it became known.
    const { urls } = replicas
    const live = rows.filter(({ url }) => urls.includes(url))
    ofOthers = Map.groupBy(live, ({ worker_id }) => worker_id)
    const known = new Set([...seen.values()].flat().map(({ ticket }) => ticket))
    const fresh = live.filter(({ ticket }) => !known.has(ticket)).map(({ worker_id }) => ticketTopic(worker_id))
    if (fresh.length > 0) notifications.publish([...new Set(fresh)])
  }

  return {
    announce(worker, ticket) {
      notifications.publish([ticketTopic(worker)])
      const url = replicas.ownUrl
      if (url === null || replicas.count < 2) return
      const leaving = leave(asId<WorkerId>(worker), ticket, url).catch((error: unknown) => {
        log.warn({ error }, 'a ticket for a stream could not be left for other replicas')
      })
      left.set(ticket.ticket, leaving)
    },
    withdraw(ticket) {
      const leaving = left.get(ticket)
      if (leaving === undefined) return
      left.delete(ticket)
      leaving
        .then(() => db.asSystem((q) => streamTickets.remove(q, ticket)))
        .catch((error: unknown) => {
          log.warn({ error }, 'a ticket for a stream could not be taken back; it expires')
        })
    },
    openTickets(worker) {
      const { ownUrl } = replicas
      const own = deps.ownTickets(worker).map((ticket) => (ownUrl === null ? ticket : { ...ticket, url: ownUrl }))
      const others = ofOthers.get(worker) ?? []
      return [...own, ...others.map(({ ticket, url, asked }) => ({ ...asked, ticket, url }))]
    },
    async run(signal) {
      const lookAgain = async (): Promise<void> => {
        try {
          await look()
        } catch (error) {
          log.warn({ error }, 'tickets of other replicas could not be read; it is tried again')
        }
      }
      await runOnNotification({ clock, notifications, topic: TICKETS_TOPIC, everyMs: READ_EVERY_MS }, lookAgain, signal)
    },
  }
}
