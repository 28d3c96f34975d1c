import type { Socket } from 'node:net'
import type { FastifyInstance } from 'fastify'
import { makeConcurrencyLimit } from '../../control/streams/concurrency-limit.ts'
import { rateLimitAddress } from '../../lib/rate-limit-address.ts'
import type { Uuids } from '../../lib/uuid.ts'
import { problemOf, renderProblem } from '../server/problem-reply.ts'
import { formatRawReply } from './refuse-malformed.ts'

/** How many connections a server process has open at once. */
export type ConnectionLimits = {
  readonly capacity: number
  readonly perAddress: number
  /** How often it is looked whether clients take what they are sent, in milliseconds. */
  readonly checkIntervalMs: number
}

/** One that took nothing for so many looks in a row is gone, or holds what it is sent on purpose. */
const STALLED_CHECKS_MAX = 3

/** What a client was seen to have taken at the last look, and for how many looks it has been that. */
type SendProgress = { readonly sentBytes: number; readonly stalledChecks: number }

/**
 * Bounds the connections of a server, of all and of each address, and ends those whose client takes nothing of what it is
 * sent: the reply and what it stands on would be held for as long as the client likes.
 */
export function limitConnections(app: FastifyInstance, limits: ConnectionLimits, uuids: Uuids): void {
  const capacity = { name: 'connections', variable: 'SANDYARD_CONNECTION_CAPACITY', max: limits.capacity }
  const perAddress = { name: 'connections_per_address', variable: 'SANDYARD_CONNECTIONS_PER_ADDRESS', max: limits.perAddress } // prettier-ignore
  const connectionCounts = makeConcurrencyLimit<string>(
    [
      { ...perAddress, keyOf: (address) => address },
      { ...capacity, keyOf: () => 'all' },
    ],
    'close connections that are not used',
  )
  const open = new Map<Socket, SendProgress>()
  app.server.on('connection', (socket: Socket) => {
    try {
      socket.once('close', connectionCounts.acquire(rateLimitAddress(socket.remoteAddress)))
    } catch (error) {
      socket.write(formatRawReply(renderProblem(problemOf(error, 0), uuids.next())))
      socket.destroySoon()
      return
    }
    open.set(socket, { sentBytes: 0, stalledChecks: 0 })
    socket.once('close', () => open.delete(socket))
  })
  const checking = setInterval(() => {
    for (const [socket, before] of open) {
      const now = checkProgress(socket, before)
      if (now.stalledChecks < STALLED_CHECKS_MAX) open.set(socket, now)
      else socket.destroy()
    }
  }, limits.checkIntervalMs).unref()
  app.server.once('close', () => {
    clearInterval(checking)
  })
}

function checkProgress(socket: Socket, before: SendProgress): SendProgress {
  const sentBytes = socket.bytesWritten - socket.writableLength
  return {
    sentBytes,
    stalledChecks: socket.writableLength > 0 && sentBytes === before.sentBytes ? before.stalledChecks + 1 : 0,
  }
}
