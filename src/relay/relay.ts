/**
 * Pairs a client with its worker. The control plane cannot dial a worker, so workers stand by on a few connections each,
 * and where none is left it leaves a ticket: the worker sees it in the answer to its sync and dials in with it, once. A
 * ticket is shown until it is used: answers get lost.
 */

/** What a worker is to dial in for: `Asked` says what, `ticket` with what right. */
export type Ticket<Asked> = Asked & { readonly ticket: string }

/** `Stream` is what a worker dials in with: what carries the bytes is not the relay's business. */
export type Relay<Asked, Stream> = {
  /**
   * Takes a connection on which a worker stands by, or else leaves a ticket for it, and resolves with the stream that the worker dials in with, or with null at once when
   * too many wait already. Rejects with the signal's reason when it is aborted.
   */
  open(workerId: string, asked: Asked, signal: AbortSignal): Promise<Stream | null>
  /**
   * Keeps a connection that a worker opened ahead of need. `begin` is called at most once, with what is wanted; it answers
   * null when the connection is gone. What is returned withdraws it.
   */
  addStandby(workerId: string, begin: StartStream<Asked, Stream>): () => void
  /** All open tickets of a worker. */
  openTickets(workerId: string): readonly Ticket<Asked>[]
  /** Whether a worker may dial in with a ticket. */
  hasTicket(workerId: string, ticket: string): boolean
  /** Gives the stream that a worker dialled in with to whoever waits for it; false when the ticket is not its or is over. */
  accept(workerId: string, ticket: string, stream: Stream): boolean
  /** How many tickets are open. */
  readonly openTicketCount: number
  /** On how many connections workers stand by. */
  readonly standbyCount: number
}

/** The most tickets that may be open at once, over all workers. */
export const TICKET_LIMIT = 10_000

type StartStream<Asked, Stream> = (asked: Asked) => Promise<Stream | null>

type OpenTicket<Asked, Stream> = { readonly ticket: Ticket<Asked>; readonly resolve: (stream: Stream) => void }

/**
 * Makes a relay; `newTicket` gives unguessable texts, `onTicket` is called when a worker has a ticket to take, `onOver` when
 * a ticket is used or nobody waits any more.
 */
export function makeRelay<Asked extends object, Stream>(options: {
  readonly newTicket: () => string
  readonly onTicket: (workerId: string, ticket: Ticket<Asked>) => void
  readonly onOver?: (ticket: string) => void
}): Relay<Asked, Stream> {
  const byWorker = new Map<string, Map<string, OpenTicket<Asked, Stream>>>()
  const standbys = new Map<string, Set<StartStream<Asked, Stream>>>()
  let waiting = 0

  const withdraw = (workerId: string, begin: StartStream<Asked, Stream>): void => {
    const ofWorker = standbys.get(workerId)
    ofWorker?.delete(begin)
    if (ofWorker?.size === 0) standbys.delete(workerId)
  }
  const takeStandby = (workerId: string): StartStream<Asked, Stream> | null => {
    const [begin = null] = standbys.get(workerId) ?? []
    if (begin !== null) withdraw(workerId, begin)
    return begin
  }

  const close = (workerId: string, ticket: string): void => {
    const tickets = byWorker.get(workerId)
    if (tickets?.delete(ticket) !== true) return
    waiting -= 1
    if (tickets.size === 0) byWorker.delete(workerId)
    options.onOver?.(ticket)
  }

  return {
    async open(workerId, asked, signal) {
      signal.throwIfAborted()
      for (let begin = takeStandby(workerId); begin !== null; begin = takeStandby(workerId)) {
        const stream = await begin(asked)
        if (stream !== null) return stream
      }
      signal.throwIfAborted()
      if (waiting >= TICKET_LIMIT) return null
      const ticket = { ...asked, ticket: options.newTicket() }
      const { promise, resolve, reject } = Promise.withResolvers<Stream>()
      const onAbort = (): void => {
        close(workerId, ticket.ticket)
        reject(reasonOf(signal))
      }
      const tickets = byWorker.get(workerId) ?? new Map<string, OpenTicket<Asked, Stream>>()
      byWorker.set(workerId, tickets.set(ticket.ticket, { ticket, resolve }))
      waiting += 1
      signal.addEventListener('abort', onAbort, { once: true })
      options.onTicket(workerId, ticket)
      try {
        return await promise
      } finally {
        signal.removeEventListener('abort', onAbort)
      }
    },
    addStandby(workerId, begin) {
      const ofWorker = standbys.get(workerId) ?? new Set()
      standbys.set(workerId, ofWorker.add(begin))
      return () => {
        withdraw(workerId, begin)
      }
    },
    openTickets: (workerId) => [...(byWorker.get(workerId)?.values() ?? [])].map(({ ticket }) => ticket),
    hasTicket: (workerId, ticket) => byWorker.get(workerId)?.has(ticket) === true,
    accept(workerId, ticket, stream) {
      const one = byWorker.get(workerId)?.get(ticket)
      if (one === undefined) return false
      close(workerId, ticket)
      one.resolve(stream)
      return true
    },
    get openTicketCount() {
      return waiting
    },
    get standbyCount() {
      return [...standbys.values()].reduce((sum, ofWorker) => sum + ofWorker.size, 0)
    },
  }
}

function reasonOf(signal: AbortSignal): Error {
  return signal.reason instanceof Error ? signal.reason : new Error('the client left')
}
