import { dropContained, formatIpv4Cidr, overlaps, type Cidr } from '../../../domain/cidr.ts'
import type { PacketRule } from '../../../domain/network/network-policy.ts'
import type { Protocol } from '../../../domain/spec/spec.ts'

/** The nftables table of the router. */
export const TABLE = 'inet sandyard'

/** Renders the IPv4 part of a rule. Empty when the rule has only IPv6 addresses, because sandboxes have no IPv6. */
export function renderRule({ peer, protocols, ports }: PacketRule): readonly string[] {
  const within = dropContained(peer.within.filter(({ family }) => family === 4))
  const except = dropContained(peer.except.filter((block) => within.some((outer) => overlaps(outer, block))))
  const names = protocols.flatMap((protocol) => NAMES_4[protocol])
  if (within.length === 0 || (protocols.length > 0 && names.length === 0)) return []
  return [
    [
      within.some(({ prefix }) => prefix === 0) ? '' : `ip daddr ${renderBlocks(within)}`,
      except.length === 0 ? '' : `ip daddr != ${renderBlocks(except)}`,
      names.length === 0 ? '' : `meta l4proto { ${names.join(', ')} }`,
      ports.length === 0 ? '' : `th dport { ${joinRanges(ports).join(', ')} }`,
    ]
      .filter((part) => part !== '')
      .join(' '),
  ]
}

const NAMES_4: Readonly<Record<Protocol, readonly string[]>> = {
  tcp: ['tcp'],
  udp: ['udp'],
  icmpv4: ['icmp'],
  icmpv6: [],
}

function renderBlocks(blocks: readonly Cidr[]): string {
  return `{ ${blocks.map(formatIpv4Cidr).join(', ')} }`
}

/** Sorts port ranges and merges adjacent ranges, because nftables refuses sets with overlapping ranges. */
function joinRanges(ports: PacketRule['ports']): readonly string[] {
  const joined: { start: number; end: number }[] = []
  for (const { start, end } of ports.toSorted((a, b) => a.start - b.start)) {
    const last = joined.at(-1)
    if (last !== undefined && start <= last.end + 1) last.end = Math.max(last.end, end)
    else joined.push({ start, end })
  }
  return joined.map(({ start, end }) => (start === end ? String(start) : `${String(start)}-${String(end)}`))
}
