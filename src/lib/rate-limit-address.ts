import { isIPv6 } from 'node:net'

/**
 * The number of 16-bit groups in a /64. Each IPv6 customer has at least a /64 (RFC 6177), so all addresses within one
 * count as one client.
 */
const NETWORK_GROUPS = 4

/**
 * The address under which a rate limit counts a peer: its IPv4 address, even if written as an IPv4-mapped IPv6 address,
 * or the /64 of its IPv6 address.
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
