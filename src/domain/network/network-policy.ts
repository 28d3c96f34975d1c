/**
 * Compiles network policies into ordered packet rules. Invariants:
 * - The operator's denials come before every rule of a tenant. They deny other sandboxes, the host's own addresses, and
 *   what `operator-denials.ts` lists. Of the gateway, only DNS (port 53, TCP and UDP) can be allowed.
 * - Metadata addresses must be allowed explicitly: by the group `metadata`, or by a rule with exactly that address. A
 *   rule for `any`, a rule for a wider block, and a default of `allow` don't allow them. A denial by such a rule or by
 *   the default does deny them.
 * - A rule by name allows an address only while the sandbox's own DNS answers tie a matching name to it. A rule by name
 *   never opens what an earlier rule by address denies.
 */
import { PORT_MAX } from '../requests/request-bounds.ts'
import { cidr, contains, dropContained, parseCidr, type Cidr } from '../cidr.ts'
import { ALL_ADDRESSES, groupAddresses, METADATA_CIDRS, type AddressSet } from './network-groups.ts'
import { hasName, nameOf, type NamePattern } from './name-pattern.ts'
import { PROTOCOLS_WITH_PORTS, type Action, type NetworkPolicy, type Protocol, type Rule } from '../spec/spec.ts'

/** The policy for a request without a policy. It allows DNS and public addresses and denies all else. */
export const DEFAULT_POLICY: NetworkPolicy = {
  default_egress: 'deny',
  default_ingress: 'deny',
  rules: [
    {
      direction: 'egress',
      destination: { group: 'host' },
      action: 'allow',
      ports: [{ start: 53, end: 53 }],
      protocols: ['udp', 'tcp'],
    },
    { direction: 'egress', destination: { group: 'public' }, action: 'allow', ports: [], protocols: [] },
  ],
}

/** A rule that a driver enforces. The peer is the destination of egress packets and the source of ingress packets. */
export type PacketRule = {
  readonly action: Action
  readonly peer: AddressSet
  /** The names of the peer that match. Absent: the rule matches by address alone. */
  readonly name?: NamePattern
  /** Empty: all protocols. A rule with ports always lists protocols, because only TCP and UDP have ports. */
  readonly protocols: readonly Protocol[]
  /** Each range includes both ends. Empty: the rule matches all ports, and packets of protocols without ports. */
  readonly ports: Rule['ports']
}

/**
 * The ordered rules of each direction. The first rule that matches a packet decides. The last rule matches every
 * packet.
 */
export type PacketRules = { readonly egress: readonly PacketRule[]; readonly ingress: readonly PacketRule[] }

export type Packet = {
  readonly peer: Cidr
  readonly protocol: Protocol
  readonly port: number | null
  /** Absent: the peer has no name. */
  readonly names?: PeerNames
}

/** What is known of the name of a peer. */
export type PeerNames = {
  /** The names that the sandbox's own DNS answers tie to the peer's address. */
  readonly tied: readonly string[]
  /** The name that the connection itself asks for, by SNI or Host. Null if it names none. */
  readonly claimed: string | null
}

/**
 * Compiles a policy for a sandbox behind `gateway`. Null means the default policy. `hardDeny` lists the operator's
 * denials. Rules by name hold for egress: whoever connects to a sandbox has no name.
 */
export function compilePolicy(
  policy: NetworkPolicy | null,
  network: { readonly gateway: Cidr; readonly hardDeny: readonly Cidr[] },
): PacketRules {
  const { default_egress, default_ingress, rules } = policy ?? DEFAULT_POLICY
  const compile = (rule: Rule): readonly PacketRule[] => compileRule(rule, network.gateway)
  const operator = ruleForAllProtocols('deny', { within: dropContained(network.hardDeny), except: [network.gateway] })
  return {
    egress: [
      operator,
      ...gatewayDenials(network.gateway),
      ...rules.filter((rule) => rule.direction !== 'ingress').flatMap(compile),
      ...defaultRules(default_egress),
    ],
    ingress: [
      operator,
      ...rules.filter((rule) => rule.direction !== 'egress' && nameOf(rule.destination) === null).flatMap(compile),
      ...defaultRules(default_ingress),
    ],
  }
}

/**
 * The rules for connections to ports that a sandbox publishes. The operator's denials are about what sandboxes reach, so
 * they are not among them: who may connect is decided by the address that the operator publishes on.
 */
export function compileIngress(policy: NetworkPolicy | null): readonly PacketRule[] {
  return compilePolicy(policy, { gateway: NO_GATEWAY, hardDeny: [] }).ingress
}

/** Whether a policy lets anyone connect to a port of the sandbox. */
export function opensPort(policy: NetworkPolicy | null, protocol: Protocol, port: number): boolean {
  return compileIngress(policy).some(
    ({ action, protocols, ports }) =>
      action === 'allow' &&
      (protocols.length === 0 || protocols.includes(protocol)) &&
      (ports.length === 0 || ports.some(({ start, end }) => start <= port && port <= end)),
  )
}

/** A peer is never the sandbox's gateway: the machine itself connects from an address of its own. */
const NO_GATEWAY = cidr('0.0.0.0')

/** Decides on a packet by the rules of its direction. A packet that no rule matches is denied. */
export function decidePacket(rules: readonly PacketRule[], packet: Packet): Action {
  return findRule(rules, packet)?.action ?? 'deny'
}

/** The rule that decides on a packet, or null if none matches. */
export function findRule(rules: readonly PacketRule[], packet: Packet): PacketRule | null {
  return rules.find((rule) => matchesAddress(rule, packet) && matchesName(rule, packet.names)) ?? null
}

/** Whether the names of the peer can change the decision on a packet. */
export function isDecidedByName(rules: readonly PacketRule[], packet: Packet): boolean {
  return rules.find((rule) => matchesAddress(rule, packet))?.name !== undefined
}

const DNS_PORT = 53

function gatewayDenials(gateway: Cidr): readonly PacketRule[] {
  const peer = { within: [gateway], except: [] }
  const notDns = [
    { start: 0, end: DNS_PORT - 1 },
    { start: DNS_PORT + 1, end: PORT_MAX },
  ]
  return [
    { action: 'deny', peer, protocols: ['tcp', 'udp'], ports: notDns },
    { action: 'deny', peer, protocols: ['icmpv4', 'icmpv6'], ports: [] },
  ]
}

/**
 * Compiles a rule. A rule with ports never matches ICMP, which has none. If such a rule lists only ICMP, it matches
 * nothing and is left out, because an empty list of protocols would mean all of them.
 */
function compileRule(rule: Rule, gateway: Cidr): readonly PacketRule[] {
  const { action, ports } = rule
  const name = nameOf(rule.destination)
  const base = { action, peer: peerOf(rule, gateway), ...(name === null ? {} : { name }) }
  if (ports.length === 0) return [{ ...base, protocols: rule.protocols, ports }]
  const isListed = (protocol: Protocol): boolean => rule.protocols.length === 0 || rule.protocols.includes(protocol)
  const protocols = PROTOCOLS_WITH_PORTS.filter(isListed)
  return protocols.length === 0 ? [] : [{ ...base, protocols, ports }]
}

function peerOf({ destination, action }: Rule, gateway: Cidr): AddressSet {
  if (destination !== 'any' && 'group' in destination) return groupAddresses(destination.group, gateway)
  if (destination === 'any' || !('cidr' in destination))
    return { within: ALL_ADDRESSES, except: action === 'allow' ? METADATA_CIDRS : [] }
  const block = parseCidr(destination.cidr)
  if (block === null) throw new Error(`a rule with a bad address block was admitted: ${destination.cidr}`)
  const isByAddress = METADATA_CIDRS.some((address) => contains(address, block))
  return { within: [block], except: action === 'allow' && !isByAddress ? METADATA_CIDRS : [] }
}

function defaultRules(action: Action): readonly PacketRule[] {
  const deny = ruleForAllProtocols('deny', { within: ALL_ADDRESSES, except: [] })
  return action === 'deny'
    ? [deny]
    : [ruleForAllProtocols('allow', { within: ALL_ADDRESSES, except: METADATA_CIDRS }), deny]
}

function ruleForAllProtocols(action: Action, peer: AddressSet): PacketRule {
  return { action, peer, protocols: [], ports: [] }
}

function matchesAddress(rule: PacketRule, { peer, protocol, port }: Packet): boolean {
  if (!rule.peer.within.some((block) => contains(block, peer))) return false
  if (rule.peer.except.some((block) => contains(block, peer))) return false
  if (rule.protocols.length > 0 && !rule.protocols.includes(protocol)) return false
  return rule.ports.length === 0 || (port !== null && rule.ports.some(({ start, end }) => start <= port && port <= end))
}

/**
 * Whether a rule matches the names of a peer. An allowed name needs a DNS answer and, if the connection claims a name, that
 * name too: a sandbox can claim any name towards any address. A denied name needs one of them.
 */
function matchesName({ name, action }: PacketRule, { tied, claimed }: PeerNames = NO_NAMES): boolean {
  if (name === undefined) return true
  if (claimed !== null && !hasName(name, claimed)) return false
  return (claimed !== null && action === 'deny') || tied.some((one) => hasName(name, one))
}

const NO_NAMES: PeerNames = { tied: [], claimed: null }
