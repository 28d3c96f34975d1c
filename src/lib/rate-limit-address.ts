import { isIPv6 } from 'node:net'

/** IPv6 gives each customer a /64 at least (RFC 6177): one that changes addresses within it is still one. */
const NETWORK_GROUPS = 4

/** The address that a peer is counted by: an IPv4 address, also one in the form of IPv6, or the /64 of an IPv6 address. */
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
