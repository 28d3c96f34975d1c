import { isIPv6 } from 'node:net'

/** Each IPv6 customer has at least a /64 (RFC 6177). Therefore all addresses within a /64 count as one client. */
const NETWORK_GROUPS = 4

/**
 * The address under which a rate limit counts a peer. It is the IPv4 address, also for an IPv6-mapped one, or the /64
 * of the IPv6 address.
 */
export function rateLimitAddress(address: string | undefined): string {
  if (address === undefined) return 'unknown'
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1]
  if (mapped !== undefined) return mapped
  if (!isIPv6(address)) return address
  const [head = '', tail] = (address.split('%', 1)[0] ?? '').split('::')
  const before = head === '' ? [] : head.split(':')
  const after = tail === undefined || tail === '' ? [] : tail.split(':')
  const zeros = tail === undefined ? [] : Array<string>(8 - before.length - after.length).fill('0')
  return `${[...before, ...zeros, ...after].slice(0, NETWORK_GROUPS).join(':')}::/64`
}
