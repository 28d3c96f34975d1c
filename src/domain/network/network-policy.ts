/**
 * What a network policy means, packet by packet. Invariants:
 * - The operator's denials come before every rule of a tenant: other sandboxes, the host's own addresses, and whatever
 *   else the operator names. Of the gateway only DNS (port 53, TCP and UDP) can ever be allowed.
 * - Metadata addresses are allowed only by name: the group `metadata`, or a rule with exactly that address. `any`, a
 *   default of `allow` and wider blocks do not reach them; as denials these do cover them.
 */
import { contains, parseCidr, dropContained, type Cidr } from './cidr.ts'
import { ALL_ADDRESSES, groupAddresses, METADATA_CIDRS, type AddressSet } from './network-groups.ts'
import type { Ability } from '../spec/abilities.ts'
import type { Action, Destination, NetworkPolicy, NetworkSpec, Protocol, Rule } from '../spec/spec.ts'

/** Contract decisions, "Default network policy when the request has none". */
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

/** What a driver enforces for one packet; the peer is the destination of egress and the source of ingress. */
export type PacketRule = {
  readonly action: Action
  readonly peer: AddressSet
  /** Empty: all of them. Never empty together with ports: those are of TCP and UDP alone. */
  readonly protocols: readonly Protocol[]
  /** Both ends included; empty: all, and packets without ports. */
  readonly ports: Rule['ports']
}

/** Ordered rules for each direction; the first that matches decides, and the last matches everything. */
export type PacketRules = { readonly egress: readonly PacketRule[]; readonly ingress: readonly PacketRule[] }

export type Packet = { readonly peer: Cidr; readonly protocol: Protocol; readonly port: number | null }

/** Compiles a policy (null: the default) for a sandbox behind `gateway`. Throws on rules that need name resolution. */
export function compilePolicy(
  policy: NetworkPolicy | null,
  network: { readonly gateway: Cidr; readonly hardDeny: readonly Cidr[] },
): PacketRules {
  const { default_egress, default_ingress, rules } = policy ?? DEFAULT_POLICY
  const compile = (rule: Rule): PacketRule => compileRule(rule, network.gateway)
  const operator = ruleForAllProtocols('deny', { within: dropContained(network.hardDeny), except: [network.gateway] })
  return {
    egress: [
      operator,
      ...gatewayDenials(network.gateway),
      ...rules.filter((rule) => rule.direction !== 'ingress').map(compile),
      ...defaultRules(default_egress),
    ],
    ingress: [
      operator,
      ...rules.filter((rule) => rule.direction !== 'egress').map(compile),
      ...defaultRules(default_ingress),
    ],
  }
}

/** What happens to a packet under rules for its direction. Rules that match nothing deny. */
export function decidePacket(rules: readonly PacketRule[], packet: Packet): Action {
  return rules.find((rule) => matches(rule, packet))?.action ?? 'deny'
}

/** The abilities that a driver needs to enforce a sandbox's network. `strict` only sharpens domain rules. */
export function requiredNetworkAbilities(spec: NetworkSpec): readonly Ability[] {
  if (!spec.enabled) return ['network_off']
  const needed: Ability[] = ['network_policy']
  if (spec.max_connections !== null) needed.push('network_max_connections')
  if (spec.secrets.length > 0) needed.push('secrets')
  if (spec.policy?.rules.some((rule) => isDomain(rule.destination)) === true) needed.push('network_domains')
  return needed
}

/** Whether a destination names a domain, which packets do not carry. */
function isDomain(destination: Destination): boolean {
  return destination !== 'any' && ('domain' in destination || 'domain_suffix' in destination)
}

const DNS_PORT = 53
const LAST_PORT = 65_535

function gatewayDenials(gateway: Cidr): readonly PacketRule[] {
  const peer = { within: [gateway], except: [] }
  const notDns = [
    { start: 0, end: DNS_PORT - 1 },
    { start: DNS_PORT + 1, end: LAST_PORT },
  ]
  return [
    { action: 'deny', peer, protocols: ['tcp', 'udp'], ports: notDns },
    { action: 'deny', peer, protocols: ['icmpv4', 'icmpv6'], ports: [] },
  ]
}

function compileRule(rule: Rule, gateway: Cidr): PacketRule {
  const protocols = rule.ports.length > 0 && rule.protocols.length === 0 ? (['tcp', 'udp'] as const) : rule.protocols
  return { action: rule.action, peer: peerOf(rule, gateway), protocols, ports: rule.ports }
}

function peerOf({ destination, action }: Rule, gateway: Cidr): AddressSet {
  if (destination === 'any') return { within: ALL_ADDRESSES, except: action === 'allow' ? METADATA_CIDRS : [] }
  if ('group' in destination) return groupAddresses(destination.group, gateway)
  if (!('cidr' in destination)) throw new Error('a rule that names a domain reached a packet filter')
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

function matches(rule: PacketRule, { peer, protocol, port }: Packet): boolean {
  if (!rule.peer.within.some((block) => contains(block, peer))) return false
  if (rule.peer.except.some((block) => contains(block, peer))) return false
  if (rule.protocols.length > 0 && !rule.protocols.includes(protocol)) return false
  return rule.ports.length === 0 || (port !== null && rule.ports.some(({ start, end }) => start <= port && port <= end))
}
