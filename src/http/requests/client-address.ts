import type { IncomingMessage } from 'node:http'
import { contains, parseCidr, type Cidr } from '../../domain/cidr.ts'

/** Finds the addresses of clients, also behind the proxies that the operator trusts. */
export type ClientAddresses = {
  /**
   * The IP address of a request's client. Behind a trusted proxy, this is the last address of `X-Forwarded-For` that is
   * not itself a trusted proxy. The header counts from no other peer. Undefined if the client has disconnected.
   */
  of(request: IncomingMessage): string | undefined
  /** Whether the peer of a connection is a trusted proxy. */
  isProxy(peer: string | undefined): boolean
}

/**
 * Whether a request came by https: to this server, or to the trusted proxy that is its peer. The last `X-Forwarded-Proto` is that of
 * this proxy.
 */
export function isSecureRequest(clients: ClientAddresses, { socket, headers }: IncomingMessage): boolean {
  if ('encrypted' in socket && socket.encrypted === true) return true
  const last = String(headers['x-forwarded-proto'] ?? '').split(',').at(-1)?.trim().toLowerCase() // prettier-ignore
  return clients.isProxy(socket.remoteAddress) && last === 'https'
}

/** Takes the peer of a connection as its client. */
export const PEERS_ARE_CLIENTS: ClientAddresses = {
  of: (request) => request.socket.remoteAddress,
  isProxy: () => false,
}

/** Trusts proxies at the addresses of these blocks. A proxy must append the address of its own peer to `X-Forwarded-For`. */
export function makeClientAddresses(proxies: readonly Cidr[]): ClientAddresses {
  if (proxies.length === 0) return PEERS_ARE_CLIENTS
  const isProxy = (peer: string | undefined): boolean => {
    const address = parseAddress(peer)
    return address !== null && proxies.some((block) => contains(block, address))
  }
  return {
    isProxy,
    of({ socket, headers }) {
      let client = socket.remoteAddress
      const hops = String(headers['x-forwarded-for'] ?? '').split(',')
      // Each proxy appends its peer. So an address counts only if all addresses to the right of it are trusted proxies.
      while (isProxy(client)) {
        const before = hops.pop()?.trim()
        if (parseAddress(before) === null) break
        client = before
      }
      return client
    },
  }
}

/** Parses a single address. Node writes IPv4 peers of an IPv6 socket as `::ffff:192.0.2.1`. */
function parseAddress(text: string | undefined): Cidr | null {
  return text === undefined || text.includes('/') ? null : parseCidr(text.replace(/^::ffff:(?=\d+\.)/i, ''))
}
