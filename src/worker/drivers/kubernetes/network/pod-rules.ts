/**
 * The packet filter in the network namespace of a Pod, as commands of nft. It is loaded before anything of the sandbox
 * runs and never changes, and no process of the sandbox may change it. A packet that a sandbox sends is judged by the
 * address that the sandbox gives it: Services of the cluster are translated later, on the node.
 */
import { cidr, contains } from '../../../../domain/cidr.ts'
import type { PacketRule } from '../../../../domain/network/network-policy.ts'
import type { ConnectionBound } from '../../../network/connection-bound.ts'
import { boundRules, type ConnectionLimits } from '../../../network/rules/packet-filter.ts'
import { renderRule, TABLE } from '../../../network/rules/render-rule.ts'
import { RESOLVER } from './compile-egress.ts'

const ALL_4 = cidr('0.0.0.0/0')

type PodBounds = {
  /** What the run asks for. */
  readonly limits: ConnectionLimits
  /** The operator's bound. There may be as many connections to the resolvers beside. */
  readonly bound: ConnectionBound
}

/**
 * Returns the commands that let a Pod reach what the ordered rules allow, and nobody connect to it. They replace whatever the table had.
 * Rules for `RESOLVER` are those for the resolvers of the Pod, which `rules.pl` adds. Connections to them don't count.
 */
export function podRules(egress: readonly PacketRule[], { limits, bound }: PodBounds): readonly string[] {
  const rule = (chain: string, text: string): string => `add rule ${TABLE} ${chain} ${text}`
  const judging = (chain: string, rules: readonly PacketRule[], allowed: string): readonly string[] => [
    ...rules.flatMap((one) =>
      renderRule(one).map((text) =>
        rule(chain, `${text} ${one.action === 'allow' ? allowed : 'goto refusing'}`.trim()),
      ),
    ),
    rule(chain, 'goto refusing'),
  ]
  const chains = { refusing: '', bounding: '', asking: '', judging: '', ...HOOKS }
  return [
    `add table ${TABLE}`,
    `delete table ${TABLE}`,
    `add table ${TABLE}`,
    `add set ${TABLE} resolvers { type ipv4_addr; }`,
    ...Object.entries(chains).map(([name, hook]) => `add chain ${TABLE} ${name} ${hook}`.trim()),
    // rejects instead of dropping, so that a refused connection fails at once
    rule('refusing', 'reject with icmp type admin-prohibited'),
    ...boundRules(limits, bound).map((text) => rule('bounding', `ct state new ${text} drop`)),
    rule('bounding', 'accept'),
    rule('asking', `ct state new ct count over ${String(bound.connections)} drop`),
    ...judging('asking', egress.filter(coversResolver).map(ofAnyAddress), 'accept'),
    ...judging('judging', egress, 'goto bounding'),
    rule('leaving', 'oifname "lo" accept'),
    rule('leaving', 'meta nfproto != ipv4 drop'),
    rule('leaving', 'ct state established,related accept'),
    rule('leaving', 'ct state invalid drop'),
    rule('leaving', 'meta l4proto != { tcp, udp, icmp } drop'),
    rule('leaving', 'ip daddr @resolvers goto asking'),
    rule('leaving', 'goto judging'),
    rule('entering', 'iifname "lo" accept'),
    rule('entering', 'meta nfproto ipv4 ct state established,related accept'),
  ]
}

const HOOKS = {
  leaving: '{ type filter hook output priority filter; policy drop; }',
  entering: '{ type filter hook input priority filter; policy drop; }',
  passing: '{ type filter hook forward priority filter; policy drop; }',
}

function coversResolver({ peer }: PacketRule): boolean {
  return (
    peer.within.some((block) => contains(block, RESOLVER)) && !peer.except.some((block) => contains(block, RESOLVER))
  )
}

function ofAnyAddress(rule: PacketRule): PacketRule {
  return { ...rule, peer: { within: [ALL_4], except: [] } }
}
