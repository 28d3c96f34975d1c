import type { IncomingMessage } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { makeFairSemaphore } from '../../lib/turns/fair-semaphore.ts'
import { rateLimitAddress } from '../../lib/rate-limit-address.ts'
import type { ClientAddresses } from './client-address.ts'

/** How many requests of one address are served at once. */
const AT_ONCE = 2
/** How long after its reply a request still counts, in milliseconds: an address gets at most 100 replies a second. */
const REST_MS = 20

/**
 * Serves requests that need no key, a few at a time for each address. Nothing is refused: the requests beyond wait for their turn, and
 * the limit on the connections of an address bounds how many wait. Health checks of many services may share an address. Resolves
 * with null if the client disconnected before its turn.
 */
export type AddressThrottle = <Reply>(request: IncomingMessage, serve: () => Promise<Reply>) => Promise<Reply | null>

/** Creates a throttle under which no request waits. */
export function makeAddressThrottle(clients: Pick<ClientAddresses, 'of'>): AddressThrottle {
  const semaphore = makeFairSemaphore({
    permits: Number.MAX_SAFE_INTEGER,
    permitsPerKey: AT_ONCE,
    waitersPerKey: Number.MAX_SAFE_INTEGER,
  })
  return async (request, serve) => {
    const release = await semaphore.acquire(rateLimitAddress(clients.of(request)))
    if (request.socket.destroyed) {
      release?.()
      return null
    }
    try {
      return await serve()
    } finally {
      void sleep(REST_MS, undefined, { ref: false }).then(release ?? undefined)
    }
  }
}
