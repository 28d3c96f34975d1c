import { contains, parseCidr } from '../../../domain/cidr.ts'
import { METADATA_CIDRS, METADATA_ADDRESSES } from '../../../domain/network/network-groups.ts'
import { DEFAULT_POLICY } from '../../../domain/network/network-policy.ts'
import type { Destination, NetworkPolicy, NetworkSpec, Rule } from '../../../domain/spec/spec.ts'
import { networkInterfaces } from 'node:os'

/** A virtual machine's network, in the form that the SDK's builder accepts. */
export type VmNetwork = {
  readonly strict: boolean
  readonly max_connections: number | null
  readonly policy: NetworkPolicy
}

/**
 * Translates a spec's network. Returns null if the sandbox has no network. As with every driver, the operator's rules come
 * before the tenant's (decision 0007). They deny the machine's own addresses, loopback, and every port of the gateway except
 * DNS. A metadata address is reachable only if a rule names it. The runtime makes connections from a process on this machine.
 * Without these rules, a default of `allow` would reach the machine's own services.
 */
export function makeVmNetwork(spec: NetworkSpec, hostAddresses: readonly string[]): VmNetwork | null {
  if (!spec.enabled) return null
  const policy = spec.policy ?? DEFAULT_POLICY
  return {
    strict: spec.strict,
    max_connections: spec.max_connections,
    policy: {
      default_egress: policy.default_egress,
      default_ingress: policy.default_ingress,
      rules: [...operatorRules(hostAddresses), ...metadataRules(policy), ...policy.rules],
    },
  }
}

const NOT_DNS: Rule['ports'] = [
  { start: 0, end: 52 },
  { start: 54, end: 65_535 },
]

function operatorRules(hostAddresses: readonly string[]): readonly Rule[] {
  return [
    ...hostAddresses.map((address) => denyEgress({ cidr: blockOf(address) })),
    denyEgress({ group: 'loopback' }),
    { ...denyEgress({ group: 'host' }), protocols: ['tcp', 'udp'], ports: NOT_DNS },
    { ...denyEgress({ group: 'host' }), protocols: ['icmpv4', 'icmpv6'] },
  ]
}

/**
 * Returns the policy's rules that name metadata addresses, followed by a rule that denies all metadata addresses. Therefore
 * `any`, a default of `allow` and wider blocks don't allow metadata addresses. A rule that denies `any` or a wider block
 * applies to them, too.
 */
function metadataRules(policy: NetworkPolicy): readonly Rule[] {
  const said = policy.rules.flatMap((rule): readonly Rule[] => {
    if (rule.direction === 'ingress') return []
    if (namesMetadata(rule.destination)) return [{ ...rule, direction: 'egress' }]
    return rule.action === 'deny' && coversMetadata(rule.destination)
      ? METADATA_BLOCKS.map((destination) => ({ ...rule, direction: 'egress', destination }))
      : []
  })
  return [...said, denyEgress({ group: 'metadata' }), ...METADATA_BLOCKS.map(denyEgress)]
}

const METADATA_BLOCKS: readonly Destination[] = METADATA_ADDRESSES.map((address) => ({ cidr: blockOf(address) }))

function namesMetadata(destination: Destination): boolean {
  if (destination === 'any') return false
  if ('group' in destination) return destination.group === 'metadata'
  const block = 'cidr' in destination ? parseCidr(destination.cidr) : null
  return block !== null && METADATA_CIDRS.some((address) => contains(address, block))
}

function coversMetadata(destination: Destination): boolean {
  if (destination === 'any') return true
  const block = 'cidr' in destination ? parseCidr(destination.cidr) : null
  return block !== null && METADATA_CIDRS.some((address) => contains(block, address))
}

function blockOf(address: string): string {
  return address.includes(':') ? `${address}/128` : `${address}/32`
}

function denyEgress(destination: Destination): Rule {
  return { direction: 'egress', destination, action: 'deny', ports: [], protocols: [] }
}

/** Returns the addresses of this machine except loopback. */
export function hostAddresses(): readonly string[] {
  return Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .filter(({ internal }) => !internal)
    .map(({ address }) => address)
}
