/**
 * The nftables rules of sandboxes whose policy needs more than addresses, as text. Their TCP connections are redirected to
 * the egress process, which opens connections of its own for them, from the gateway of the sandbox. The chain `dial` judges
 * these as far as addresses can: it allows what a rule by name may allow. Other packets to a name are judged by sets of the
 * addresses that DNS answers tie to it. Without the egress process, the connections are refused.
 */
import type { PacketRule } from '../../../domain/network/network-policy.ts'
import { EGRESS_PORT } from '../../egress/messages.ts'
import { ipBatch, ipJson } from '../network-commands.ts'
import { slotDevice, type NetworkNames } from '../network-names.ts'
import { renderRule, TABLE } from './render-rule.ts'

/** The mark of packets that the router keeps for the egress process. */
const REDIRECT_MARK = '0x1'
/** The number of the routing table, and the preference of the rule that leads to it. */
const ROUTING_TABLE = '100'

/** The UDP ports of look-ups that the DNS forwarder doesn't see: NetBIOS, DNS over QUIC, mDNS, LLMNR. */
const UNSEEN_LOOK_UPS = [137, 853, 5353, 5355]

/** Makes the router keep marked packets for itself. May be repeated. */
export async function routeRedirected({ commands, routerNamespace }: NetworkNames): Promise<void> {
  const rules = await ipJson(commands, ['-n', routerNamespace, 'rule', 'show', 'pref', ROUTING_TABLE])
  const lines = ['link set lo up', `route replace local 0.0.0.0/0 dev lo table ${ROUTING_TABLE}`]
  const rule = `rule add pref ${ROUTING_TABLE} fwmark ${REDIRECT_MARK} lookup ${ROUTING_TABLE}`
  const hasRule = Array.isArray(rules) && rules.length > 0
  await ipBatch(commands, hasRule ? lines : [...lines, rule], routerNamespace)
}

/** The rules that are common to all redirected sandboxes. They follow those of the chains that they extend. */
export function redirectBaseRules(dnsTarget: string): readonly string[] {
  return [
    `add map ${TABLE} dialers { type ipv4_addr : verdict; }`,
    `add set ${TABLE} redirected { type ifname; }`,
    // an answer to what the egress process opened, and the error of a connection that `dial` refused
    `add rule ${TABLE} local_in iifname "up0" ct state established,related accept`,
    `add rule ${TABLE} judging iifname "lo" icmp type destination-unreachable accept`,
    `add rule ${TABLE} local_in iifname "lo" icmp type destination-unreachable accept`,
    `add rule ${TABLE} local_in iifname != "up0" meta mark ${REDIRECT_MARK} accept`,
    `add rule ${TABLE} local_out oifname . ct mark @answers ct state established,related accept`,
    `add rule ${TABLE} local_out oifname "up0" ip saddr vmap @dialers`,
    // queries to other resolvers are judged by their address, then answered like all others
    `add rule ${TABLE} answering_dns iifname @redirected udp dport 53 ${dnsTarget}`,
    `add rule ${TABLE} answering_dns iifname @redirected tcp dport 53 ${dnsTarget}`,
  ]
}

export type Redirection = {
  readonly slot: number
  readonly gateway: string
  readonly mark: number
  readonly egress: readonly PacketRule[]
  readonly closed_udp_ports: readonly number[]
}

/** The rules of one sandbox that follow the checks of its chain `judge`, up to those for other packets than TCP. */
export function redirectRules({ slot, gateway, mark, egress, closed_udp_ports }: Redirection): readonly string[] {
  const chain = (name: string): string => `${TABLE} ${name}_${String(slot)}`
  const [judge, redirect, dial] = [chain('judge'), chain('redirect'), chain('dial')]
  const accept = `ct mark set ${String(mark)} accept`
  const leading = egress.slice(
    0,
    egress.findIndex(({ action, name }) => action === 'allow' || name !== undefined),
  )
  const reachable = egress.filter(({ action, name }) => action === 'allow' || name === undefined)
  return [
    ...[redirect, dial].flatMap((name) => [`add chain ${name}`, `flush chain ${name}`]),
    ...namedRules(egress).map((_, index) => `add set ${tiedSet(slot, index)} { type ipv4_addr; flags timeout; }`),
    `add rule ${redirect} jump bound_${String(slot)}`,
    `add rule ${redirect} meta l4proto tcp ct mark set ${String(mark)} meta mark set ${REDIRECT_MARK} tproxy ip to 127.0.0.1:${String(EGRESS_PORT)} accept`,
    `add rule ${redirect} goto refusing`,
    `add rule ${dial} meta l4proto != tcp drop`,
    ...reachable.flatMap((rule) =>
      renderRule(rule).map((text) => `add rule ${dial} ${text} ${rule.action === 'allow' ? accept : 'goto refusing'}`),
    ),
    `add rule ${dial} goto refusing`,
    `add element ${TABLE} dialers { ${gateway} : goto dial_${String(slot)} }`,
    `add element ${TABLE} redirected { "${slotDevice(slot)}" }`,
    // each query is judged by its name
    `add rule ${judge} ip daddr ${gateway} meta l4proto { tcp, udp } th dport 53 goto pass_${String(slot)}`,
    // DNS over TLS, and look-ups that no resolver sees, would make rules by name guess
    `add rule ${judge} tcp dport 853 goto refusing`,
    `add rule ${judge} udp dport { ${[...new Set([...UNSEEN_LOOK_UPS, ...closed_udp_ports])].join(', ')} } drop`,
    ...leading.flatMap((rule) =>
      renderRule(rule).map((text) => `add rule ${judge} meta l4proto tcp ${text} goto refusing`),
    ),
    `add rule ${judge} tcp dport != 53 goto redirect_${String(slot)}`,
  ]
}

/** The commands that end the connections of the egress process for a sandbox and refuse new ones. */
export function cutOffRedirect(slot: number, gateway: string): readonly string[] {
  const [dial, device] = [`dial_${String(slot)}`, slotDevice(slot)]
  return [
    `add chain ${TABLE} ${dial}`,
    ...gone(`dialers { ${gateway} : goto ${dial} }`),
    ...gone(`redirected { "${device}" }`),
  ]
}

/** The commands that remove what `redirectRules` added. The chains that use it are flushed before. */
export function removeRedirect(slot: number, sets: number): readonly string[] {
  return [
    ...['redirect', 'dial'].flatMap((name) => {
      const chain = `${TABLE} ${name}_${String(slot)}`
      return [`add chain ${chain}`, `flush chain ${chain}`, `delete chain ${chain}`]
    }),
    ...Array.from({ length: sets }, (_, index) => tiedSet(slot, index)).flatMap((set) => [
      `add set ${set} { type ipv4_addr; flags timeout; }`,
      `delete set ${set}`,
    ]),
  ]
}

/** The commands that tie addresses to the names of a rule, for a number of seconds. */
export function tieRules(slot: number, index: number, tied: ReadonlyMap<string, number>): readonly string[] {
  if (tied.size === 0) return []
  const set = tiedSet(slot, index)
  const addresses = [...tied.keys()].join(', ')
  return [
    // adding an element again would keep its earlier end
    `add element ${set} { ${addresses} }`,
    `delete element ${set} { ${addresses} }`,
    `add element ${set} { ${[...tied].map(([address, secs]) => `${address} timeout ${String(secs)}s`).join(', ')} }`,
  ]
}

/** The rules of a policy by name, in order. Each has a set of addresses. */
export function namedRules(
  egress: readonly PacketRule[],
): readonly (PacketRule & Required<Pick<PacketRule, 'name'>>)[] {
  return egress.flatMap((rule) => (rule.name === undefined ? [] : [{ ...rule, name: rule.name }]))
}

/** The condition that a packet goes to a name of the rule with this index among `namedRules`. */
export function isTied(slot: number, index: number): string {
  return `ip daddr @tied_${String(slot)}_${String(index)}`
}

function tiedSet(slot: number, index: number): string {
  return `${TABLE} tied_${String(slot)}_${String(index)}`
}

function gone(element: string): readonly string[] {
  return [`add element ${TABLE} ${element}`, `delete element ${TABLE} ${element}`]
}
