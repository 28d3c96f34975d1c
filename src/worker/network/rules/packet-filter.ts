/**
 * The router's nftables rules, as text. Each sandbox has its own chain, which checks every packet before routing and
 * address translation. The chain therefore sees each packet as the sandbox sent it. Allowed connections get the
 * attachment's mark. Replies pass only to the device that currently has this mark. A new run or a new policy gets a new
 * mark, so all connections with the earlier mark end. Each mark has a conntrack zone of its own, so entries of ended
 * connections don't conflict with new connections between the same addresses. Traffic of a device without rules is
 * dropped.
 */
import type { PacketRule } from '../../../domain/network/network-policy.ts'
import type { ConnectionBound } from '../connection-bound.ts'
import type { EgressNeeds } from '../network-records.ts'
import type { NetworkSpec } from '../../../domain/spec/spec.ts'
import type { PublishedPort } from '../../../domain/spec/published-ports.ts'
import { slotDevice } from '../network-names.ts'
import { renderRule, TABLE } from './render-rule.ts'
import { translationBaseRules } from '../shown-address.ts'
import { cutOffRedirect, isTied, redirectBaseRules, redirectRules, removeRedirect } from './redirect-rules.ts'

/** The address of the DNS forwarder. The router redirects port 53 of the gateways to it. */
export type DnsTarget = { readonly address: string; readonly port: number }

/** The maximum number of DNS packets per second from one sandbox, so that none can exhaust the shared forwarder. */
const DNS_PACKETS_PER_SECOND = 500

/**
 * Returns the rules that are common to all sandboxes. Applying them again changes only the DNS target. `hostAddress` is the
 * host's end of the uplink, from which the worker connects to published ports.
 */
export function routerBaseRules(dns: DnsTarget, hostAddress: string): readonly string[] {
  const target = `dnat ip to ${dns.address}:${String(dns.port)}`
  const chains = {
    zoning: 'type filter hook prerouting priority raw; policy accept;',
    judging: 'type filter hook prerouting priority mangle; policy drop;',
    answering_dns: 'type nat hook prerouting priority dstnat; policy accept;',
    local_in: 'type filter hook input priority filter; policy drop;',
    local_out: 'type filter hook output priority filter; policy drop;',
    passing: 'type filter hook forward priority filter; policy drop;',
    masking: 'type nat hook postrouting priority srcnat; policy accept;',
  }
  return [
    `add table ${TABLE}`,
    `add set ${TABLE} answers { type ifname . mark; }`,
    `add map ${TABLE} judges { type ifname : verdict; }`,
    `add map ${TABLE} published { type ipv4_addr . inet_proto . inet_service : mark; }`,
    `add map ${TABLE} zones { typeof iifname : ct zone; }`,
    ...Object.entries(chains).flatMap(([name, hook]) => [
      `add chain ${TABLE} ${name} { ${hook} }`,
      `flush chain ${TABLE} ${name}`,
    ]),
    `add chain ${TABLE} refusing`,
    `flush chain ${TABLE} refusing`,
    // rejects instead of dropping, so that a refused connection fails at once ("no route to host") and doesn't time out
    `add rule ${TABLE} refusing reject with icmp type admin-prohibited`,
    `add rule ${TABLE} zoning ct original zone set iifname map @zones`,
    `add rule ${TABLE} judging meta nfproto != ipv4 drop`,
    `add rule ${TABLE} judging iifname "up0" ct state established,related accept`,
    `add rule ${TABLE} judging iifname "up0" ip saddr ${hostAddress} ct state new ct mark set ip daddr . meta l4proto . th dport map @published accept`,
    `add rule ${TABLE} judging iifname vmap @judges`,
    `add rule ${TABLE} answering_dns iifname != "up0" fib daddr type local udp dport 53 ${target}`,
    `add rule ${TABLE} answering_dns iifname != "up0" fib daddr type local tcp dport 53 ${target}`,
    // lets the router itself send path MTU and time exceeded messages to sandboxes
    `add rule ${TABLE} local_out icmp type { destination-unreachable, time-exceeded } accept`,
    `add rule ${TABLE} passing iifname != "up0" oifname "up0" accept`,
    `add rule ${TABLE} passing iifname "up0" ct state new,established,related oifname . ct mark @answers accept`,
    // keeps the sandboxes' addresses, by which the forwarder tells them apart
    `add rule ${TABLE} masking oifname "up0" ip daddr ${dns.address} accept`,
    `add rule ${TABLE} masking oifname "up0" masquerade`,
    ...redirectBaseRules(target),
    ...translationBaseRules(),
  ]
}

/** The attachment of one sandbox to the router. */
type Attachment = {
  readonly slot: number
  readonly gateway: string
  readonly address: string
  /** The mark of the sandbox's connections. Not 0, and different from the slot's earlier marks. */
  readonly mark: number
  readonly egress: readonly PacketRule[]
  readonly limits: ConnectionLimits
  /** The operator's bound. Null if the kernel can't count connections. */
  readonly bound: ConnectionBound | null
  /** What the egress process must do. Null: the packet filter judges everything. */
  readonly redirect: Pick<EgressNeeds, 'closed_udp_ports'> | null
  /** The ports of the sandbox that the machine publishes. Absent: none. */
  readonly published?: readonly PublishedPort[]
}

/** How many connections a sandbox asks for. Null, absent and 0: as many as the operator's bound allows. */
export type ConnectionLimits = Pick<NetworkSpec, 'max_connections' | 'max_udp_connections'>

/** The conditions under which a new connection is dropped. They are in one chain, so that all ways out count together. */
export function boundRules(limits: ConnectionLimits, bound: ConnectionBound | null): readonly string[] {
  const { max_connections, max_udp_connections } = limits
  const most = bound?.connections ?? null
  const rate = bound === null ? [] : [`limit rate over ${String(bound.newPerSecond)}/second burst ${String(bound.connections)} packets`] // prettier-ignore
  const count = (condition: string, limit: number | null): readonly string[] =>
    limit === null || limit === 0 ? [] : [`${condition} ct count over ${String(limit)}`.trimStart()]
  if (max_udp_connections === undefined) return [...rate, ...count('', max_connections), ...count('', most)]
  const own = [...count('meta l4proto != udp', max_connections), ...count('meta l4proto udp', max_udp_connections)]
  return [...rate, ...own, ...count('', most)]
}

/**
 * Returns the commands that apply a sandbox's policy in one transaction. Applying the same attachment again keeps its
 * connections.
 */
export function attachmentRules(attachment: Attachment): readonly string[] {
  const { slot, gateway, address, mark, egress, bound, redirect, published = [] } = attachment
  const device = slotDevice(slot)
  const judge = `${TABLE} judge_${String(slot)}`
  const pass = `${TABLE} pass_${String(slot)}`
  const dnsLimit = bound === null ? [] : [`ct state new ct count over ${String(bound.connections)} drop`]
  const bounding = `${TABLE} bound_${String(slot)}`
  return [
    ...[bounding, pass, judge].flatMap((chain) => [`add chain ${chain}`, `flush chain ${chain}`]),
    ...boundRules(attachment.limits, bound).map((text) => `add rule ${bounding} ct state new ${text} drop`),
    `add rule ${judge} ip saddr != ${address} drop`,
    `add rule ${judge} ct state invalid drop`,
    `add rule ${judge} ct state established,related ct mark != ${String(mark)} drop`,
    `add rule ${judge} meta l4proto != { tcp, udp, icmp } drop`,
    // only a published port is connected to from outside
    ...(published.length === 0 ? [] : [`add rule ${judge} ct state established ct direction reply accept`]),
    ...(redirect === null ? [] : redirectRules({ ...redirect, slot, gateway, mark, egress })),
    ...renderRules(egress, slot).map((text) => `add rule ${judge} ${text}`),
    `add rule ${judge} goto refusing`,
    `add rule ${pass} ip daddr ${gateway} limit rate over ${String(DNS_PACKETS_PER_SECOND)}/second burst ${String(DNS_PACKETS_PER_SECOND)} packets drop`,
    ...dnsLimit.map((text) => `add rule ${pass} ip daddr ${gateway} ${text}`),
    `add rule ${pass} ip daddr ${gateway} ct mark set ${String(mark)} accept`,
    `add rule ${pass} jump bound_${String(slot)}`,
    `add rule ${pass} ct mark set ${String(mark)} accept`,
    ...publishedKeys(address, published).map((key) => `add element ${TABLE} published { ${key} : ${String(mark)} }`),
    `add element ${TABLE} answers { "${device}" . ${String(mark)} }`,
    `add element ${TABLE} zones { "${device}" : ${String(zoneOf(mark))} }`,
    `add element ${TABLE} judges { "${device}" : goto judge_${String(slot)} }`,
  ]
}

/** The keys of the ports of a sandbox. Each is in the map once, whatever ports of the machine lead to it. */
function publishedKeys(address: string, ports: readonly PublishedPort[]): readonly string[] {
  return [...new Set(ports.map(({ protocol, guest_port }) => `${address} . ${protocol} . ${String(guest_port)}`))]
}

/** What is known of an attachment that ends. */
type CutOff = {
  readonly slot: number
  readonly address: string
  readonly mark: number
  readonly published?: readonly PublishedPort[]
  /** The gateway, and the number of rules by name. Null if connections don't go to the egress process. */
  readonly redirected: { readonly gateway: string; readonly named: number } | null
}

/**
 * Returns the commands that end all connections of a sandbox and refuse new ones. They also succeed if some of the
 * sandbox's rules are missing.
 */
export function cutOffRules({ slot, address, mark, redirected, published = [] }: CutOff): readonly string[] {
  const device = slotDevice(slot)
  const gone = (element: string): readonly string[] => [
    `add element ${TABLE} ${element}`,
    `delete element ${TABLE} ${element}`,
  ]
  return [
    `add chain ${TABLE} judge_${String(slot)}`,
    ...gone(`judges { "${device}" : goto judge_${String(slot)} }`),
    ...gone(`zones { "${device}" : ${String(zoneOf(mark))} }`),
    ...publishedKeys(address, published).flatMap((key) => gone(`published { ${key} : ${String(mark)} }`)),
    ...gone(`answers { "${device}" . ${String(mark)} }`),
    ...(redirected === null ? [] : cutOffRedirect(slot, redirected.gateway)),
  ]
}

/** Returns the commands that remove a sandbox's rules. They also succeed if some of the rules are missing. */
export function detachmentRules(cut: CutOff): readonly string[] {
  const { slot, redirected } = cut
  const chains = ['judge', 'pass', 'bound'].map((name) => `${TABLE} ${name}_${String(slot)}`)
  return [
    ...cutOffRules(cut),
    ...chains.flatMap((chain) => [`add chain ${chain}`, `flush chain ${chain}`]),
    ...(redirected === null ? [] : removeRedirect(slot, redirected.named)),
    ...chains.map((chain) => `delete chain ${chain}`),
  ]
}

const LARGEST_ZONE = 0xffff

function zoneOf(mark: number): number {
  return 1 + (mark % LARGEST_ZONE)
}

/** Renders the rules of a sandbox with their verdicts. */
function renderRules(rules: readonly PacketRule[], slot: number): readonly string[] {
  let named = 0
  return rules.flatMap((rule) => {
    const condition = rule.name === undefined ? '' : `${isTied(slot, named++)} `
    return renderRule(rule).map((text) => `${condition}${text} ${verdict(rule, slot)}`)
  })
}

function verdict({ action }: PacketRule, slot: number): string {
  return action === 'allow' ? `goto pass_${String(slot)}` : 'goto refusing'
}
