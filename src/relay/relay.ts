/**
 * Gets streams from workers for the requests of clients. The control plane can't dial a worker, so each worker keeps a
 * few standby connections open. If none is left, the relay creates a ticket. The worker finds the ticket in the answer
 * to its sync, and dials in with it once. An answer can get lost, so every answer contains the ticket until it is used.
 */

/** The right of a worker to dial in once, for the stream that `Asked` describes. */
export type Ticket<Asked> = Asked & { readonly ticket: string }

/** `Asked` describes a stream, and `Stream` is the connection that carries it. The relay reads neither. */
export type Relay<Asked, Stream> = {
  /**
   * Opens a stream to a worker, on a standby connection or with a ticket. Resolves with null at once if too many
   * tickets are open. Rejects with the signal's reason when the signal aborts.
   */
  open(workerId: string, asked: Asked, signal: AbortSignal): Promise<Stream | null>
  /**
   * Adds a standby connection of a worker. The relay calls `begin` at most once, to start a stream on the connection.
   * `begin` resolves with null if the connection is gone. Call the returned function to withdraw the connection.
   */
  addStandby(workerId: string, begin: StartStream<Asked, Stream>): () => void
  /** The open tickets of a worker. */
  openTickets(workerId: string): readonly Ticket<Asked>[]
  /** Whether a ticket of a worker is open. */
  hasTicket(workerId: string, ticket: string): boolean
  /**
   * Uses a ticket: passes the stream of the worker that dialled in to the `open` call that waits for it. Returns false
   * if the worker has no such open ticket.
   */
  accept(workerId: string, ticket: string, stream: Stream): boolean
  /** The number of open tickets of all workers. */
  readonly openTicketCount: number
  /** The number of standby connections of all workers. */
  readonly standbyCount: number
}

/** The maximum number of tickets that are open at the same time, of all workers together. */
export const TICKET_LIMIT = 10_000

type StartStream<Asked, Stream> = (asked: Asked) => Promise<Stream | null>

type OpenTicket<Asked, Stream> = { readonly ticket: Ticket<Asked>; readonly resolve: (stream: Stream) => void }

/**
 * Creates a relay. `newTicket` returns a new, unguessable text. `onTicket` is called when a ticket is opened. `onOver`
 * is called when a ticket is used or its caller stops waiting.
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
  return signal.reason instanceof Error ? signal.reason : new Error('the client disconnected')
}
