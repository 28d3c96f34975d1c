/**
 * Compiles the ordered rules of a network policy, of which the first that matches decides, into the unordered ones of a
 * NetworkPolicy, which only allow. For each address, the rules are decided for all ports; what comes out alike is one
 * rule. Exact for IPv4: a NetworkPolicy allows IPv6 nothing, as elsewhere. What it can't express is a part of the ports
 * of an address where ICMP is allowed, because ICMP has no ports.
 */
import { cidr, contains, formatIpv4Cidr, subtractAll, type Cidr } from '../../../../domain/cidr.ts'
import type { PacketRule } from '../../../../domain/network/network-policy.ts'
import type { Protocol } from '../../../../domain/spec/spec.ts'
import { PORT_MAX } from '../../../../domain/requests/request-bounds.ts'

/** A rule of `spec.egress` of a NetworkPolicy. Without `ports`, it allows all protocols. */
export type EgressRule = { readonly to: readonly object[]; readonly ports?: readonly PolicyPort[] }
type PolicyPort = { readonly protocol: 'TCP' | 'UDP'; readonly port?: number; readonly endPort?: number }

/** Both ends are included. */
type PortRange = { readonly start: number; readonly end: number }
/** What is allowed towards an address. */
type Allowed = { readonly tcp: readonly PortRange[]; readonly udp: readonly PortRange[]; readonly icmp: boolean }

/** The address that stands for the resolver of the cluster: for the gateway, which a Pod doesn't have. */
export const RESOLVER = cidr('0.0.0.0')
const ALL_4 = cidr('0.0.0.0/0')
const ADDRESS_BITS = 32

/**
 * Returns the rules that allow what `rules` allow. `isExact` is false if no NetworkPolicy can: somewhere ICMP is
 * allowed, and TCP and UDP are not, or only in part. The rules returned then allow everything there.
 */
export function compileEgress(rules: readonly PacketRule[]): {
  readonly egress: readonly EgressRule[]
  readonly isExact: boolean
} {
  const alike = new Map<string, { readonly allowed: Allowed; blocks: Cidr[] }>()
  const resolver = allowedOf(rules.filter((rule) => coversAddress(rule, RESOLVER)))
  for (const block of blocksOf(rules)) {
    if (contains(RESOLVER, block)) continue
    const allowed = allowedOf(rules.filter((rule) => coversAddress(rule, block)))
    const key = JSON.stringify(allowed)
    const known = alike.get(key) ?? { allowed, blocks: [] }
    alike.set(key, known)
    known.blocks.push(block)
  }
  const compiled: EgressRule[] = []
  const dns = portsOf(resolver)
  if (dns.length > 0) compiled.push({ to: [RESOLVER_PODS], ports: dns })
  let isExact = true
  for (const { allowed, blocks } of alike.values()) {
    const ports = portsOf(allowed)
    if (allowed.icmp) compiled.push({ to: peersOf(blocks) })
    else if (ports.length > 0) compiled.push({ to: peersOf(blocks), ports })
    isExact &&= !allowed.icmp || (isWhole(allowed.tcp) && isWhole(allowed.udp))
  }
  return { egress: compiled, isExact }
}

/** The Pods that answer the DNS queries of a cluster. */
const RESOLVER_PODS = {
  namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'kube-system' } },
  podSelector: { matchLabels: { 'k8s-app': 'kube-dns' } },
}

/** All IPv4 addresses in blocks, each of which every rule covers as a whole or not at all. */
function blocksOf(rules: readonly PacketRule[]): readonly Cidr[] {
  const named = rules.flatMap(({ peer }) => [...peer.within, ...peer.except]).filter(({ family }) => family === 4)
  const ends = new Set([0n, 1n << BigInt(ADDRESS_BITS), ...named.flatMap(({ first, last }) => [first, last + 1n])])
  const cuts = [...ends].toSorted((a, b) => (a < b ? -1 : 1))
  return cuts.slice(1).flatMap((end, index) => blocksBetween(cuts[index] ?? 0n, end))
}

/** The largest blocks from `first` to `end`, which is excluded. */
function blocksBetween(first: bigint, end: bigint): readonly Cidr[] {
  const blocks: Cidr[] = []
  for (let at = first; at < end;) {
    let prefix = ADDRESS_BITS
    while (prefix > 0 && at % sizeOf(prefix - 1) === 0n && at + sizeOf(prefix - 1) <= end) prefix -= 1
    blocks.push({ family: 4, first: at, last: at + sizeOf(prefix) - 1n, prefix })
    at += sizeOf(prefix)
  }
  return blocks
}

function sizeOf(prefix: number): bigint {
  return 1n << BigInt(ADDRESS_BITS - prefix)
}

function coversAddress({ peer }: PacketRule, block: Cidr): boolean {
  return peer.within.some((one) => contains(one, block)) && !peer.except.some((one) => contains(one, block))
}

function allowedOf(rules: readonly PacketRule[]): Allowed {
  const icmp = rules.find(({ protocols, ports }) => ports.length === 0 && isOf(protocols, 'icmpv4'))
  return { tcp: allowedPorts(rules, 'tcp'), udp: allowedPorts(rules, 'udp'), icmp: icmp?.action === 'allow' }
}

function allowedPorts(rules: readonly PacketRule[], protocol: Protocol): readonly PortRange[] {
  const judging = rules.filter(({ protocols }) => isOf(protocols, protocol))
  const ends = new Set([
    0,
    PORT_MAX + 1,
    ...judging.flatMap(({ ports }) => ports.flatMap(({ start, end }) => [start, end + 1])),
  ])
  const cuts = [...ends].toSorted((a, b) => a - b)
  const ranges: PortRange[] = []
  for (const [index, end] of cuts.slice(1).entries()) {
    const start = cuts[index] ?? 0
    const rule = judging.find(
      ({ ports }) => ports.length === 0 || ports.some((range) => range.start <= start && start <= range.end),
    )
    if (rule?.action !== 'allow') continue
    const before = ranges.at(-1)
    if (before?.end === start - 1) ranges.splice(-1, 1, { start: before.start, end: end - 1 })
    else ranges.push({ start, end: end - 1 })
  }
  return ranges
}

function isOf(protocols: readonly Protocol[], protocol: Protocol): boolean {
  return protocols.length === 0 || protocols.includes(protocol)
}

/** Whether ranges have all ports. No NetworkPolicy knows port 0, which no connection has. */
function isWhole(ranges: readonly PortRange[]): boolean {
  return ranges.some(({ start, end }) => start <= 1 && end >= PORT_MAX)
}

function portsOf({ tcp, udp }: Allowed): readonly PolicyPort[] {
  const rendered = (protocol: 'TCP' | 'UDP', ranges: readonly PortRange[]): readonly PolicyPort[] => {
    if (isWhole(ranges)) return [{ protocol }]
    return ranges
      .filter(({ end }) => end > 0)
      .map(({ start, end }) => {
        const port = Math.max(1, start)
        return { protocol, port, ...(end === port ? {} : { endPort: end }) }
      })
  }
  return [...rendered('TCP', tcp), ...rendered('UDP', udp)]
}

/** The blocks as peers: as they are, or as all addresses without the others, whichever is shorter. */
function peersOf(blocks: readonly Cidr[]): readonly object[] {
  const merged = subtractAll([ALL_4], subtractAll([ALL_4], blocks))
  const others = subtractAll([ALL_4], merged).map(formatIpv4Cidr)
  if (others.length >= merged.length) return merged.map((block) => ({ ipBlock: { cidr: formatIpv4Cidr(block) } }))
  return [{ ipBlock: { cidr: formatIpv4Cidr(ALL_4), ...(others.length === 0 ? {} : { except: others }) } }]
}
