/**
 * Pairs a client with its worker. The control plane cannot dial a worker, so it leaves a ticket for it; the worker
 * sees it in the answer to its sync and dials in with it, once. A ticket is shown until it is used: answers get lost.
 */
import type { Duplex } from 'node:stream'

export type Ticket = { readonly ticket: string; readonly target: string; readonly kind: 'agent' }

export type Relay = {
  /** Leaves a ticket for a worker and resolves with the stream that the worker dials in with. Rejects when aborted. */
  open(workerId: string, target: string, signal: AbortSignal): Promise<Duplex>
  /** All open tickets of a worker; from now on they are no news. */
  showTickets(workerId: string): readonly Ticket[]
  /** Whether a worker has a ticket that was never shown. */
  hasNews(workerId: string): boolean
  /** Whether a worker may dial in with a ticket. */
  isOpen(workerId: string, ticket: string): boolean
  /** Gives the stream that a worker dialled in with to whoever waits for it; false when the ticket is not its or is over. */
  accept(workerId: string, ticket: string, stream: Duplex): boolean
  /** How many tickets are open. */
  readonly waiting: number
}

/** The most tickets that may be open at once, over all workers. */
const TICKET_LIMIT = 10_000

type Open = { readonly ticket: Ticket; isShown: boolean; readonly resolve: (stream: Duplex) => void }

/** Makes a relay; `newTicket` gives unguessable texts, `onTicket` is called when a worker has a ticket to take. */
export function makeRelay(options: {
  readonly newTicket: () => string
  readonly onTicket: (workerId: string) => void
}): Relay {
  const byWorker = new Map<string, Map<string, Open>>()
  let waiting = 0

  return {
    open(workerId, target, signal) {
      return new Promise((resolve, reject) => {
        if (waiting >= TICKET_LIMIT) {
          reject(new Error(`${String(TICKET_LIMIT)} streams wait for their workers already`))
          return
        }
        if (signal.aborted) {
          reject(reasonOf(signal))
          return
        }
        const ticket = options.newTicket()
        const close = (): void => {
          waiting -= 1
          const tickets = byWorker.get(workerId)
          tickets?.delete(ticket)
          if (tickets?.size === 0) byWorker.delete(workerId)
          signal.removeEventListener('abort', onAbort)
        }
        const onAbort = (): void => {
          close()
          reject(reasonOf(signal))
        }
        const tickets = byWorker.get(workerId) ?? new Map<string, Open>()
        byWorker.set(workerId, tickets)
        tickets.set(ticket, {
          ticket: { ticket, target, kind: 'agent' },
          isShown: false,
          resolve: (stream) => {
            close()
            resolve(stream)
          },
        })
        waiting += 1
        signal.addEventListener('abort', onAbort, { once: true })
        options.onTicket(workerId)
      })
    },
    showTickets(workerId) {
      const tickets = [...(byWorker.get(workerId)?.values() ?? [])]
      for (const one of tickets) one.isShown = true
      return tickets.map(({ ticket }) => ticket)
    },
    hasNews: (workerId) => [...(byWorker.get(workerId)?.values() ?? [])].some(({ isShown }) => !isShown),
    isOpen: (workerId, ticket) => byWorker.get(workerId)?.has(ticket) === true,
    accept(workerId, ticket, stream) {
      const one = byWorker.get(workerId)?.get(ticket)
      one?.resolve(stream)
      return one !== undefined
    },
    get waiting() {
      return waiting
    },
  }
}

function reasonOf(signal: AbortSignal): Error {
  return signal.reason instanceof Error ? signal.reason : new Error('the client left')
}
