import { contains, dropContained, formatCidr, parseCidr, type Cidr } from '../../../domain/cidr.ts'
import { METADATA_CIDRS, METADATA_ADDRESSES } from '../../../domain/network/network-groups.ts'
import { DEFAULT_POLICY } from '../../../domain/network/network-policy.ts'
import type { Destination, NetworkPolicy, NetworkSpec, Rule } from '../../../domain/spec/spec.ts'

/** A virtual machine's network, in the form that the SDK's builder accepts. */
export type VmNetwork = {
  readonly strict: boolean
  readonly max_connections: number | null
  readonly policy: NetworkPolicy
  readonly trust_host_cas: boolean
}

/**
 * Translates a spec's network. Returns null if the sandbox has no network. As with every driver, the operator's rules
 * come before the tenant's (decision 0007). They deny `denied`, loopback, and every port of the gateway except DNS.
 * `denied` contains the machine's own addresses. A metadata address is reachable only if a rule names it. The runtime opens a sandbox's
 * connections from a process on this machine. Without these rules, a policy whose default is `allow` would let the
 * sandbox reach the machine's own services.
 */
export function makeVmNetwork(spec: NetworkSpec, denied: readonly Cidr[]): VmNetwork | null {
  if (!spec.enabled) return null
  const policy = spec.policy ?? DEFAULT_POLICY
  return {
    strict: spec.strict,
    max_connections: spec.max_connections,
    trust_host_cas: spec.trust_host_cas ?? false,
    policy: {
      default_egress: policy.default_egress,
      default_ingress: policy.default_ingress,
      rules: [...operatorRules(denied), ...metadataRules(policy), ...policy.rules],
    },
  }
}

const NOT_DNS: Rule['ports'] = [
  { start: 0, end: 52 },
  { start: 54, end: 65_535 },
]

function operatorRules(denied: readonly Cidr[]): readonly Rule[] {
  return [
    ...dropContained(denied).map((block) => denyEgress({ cidr: formatCidr(block) })),
    denyEgress({ group: 'loopback' }),
    { ...denyEgress({ group: 'host' }), protocols: ['tcp', 'udp'], ports: NOT_DNS },
    { ...denyEgress({ group: 'host' }), protocols: ['icmpv4', 'icmpv6'] },
  ]
}

/**
 * Returns the policy's rules that name metadata addresses, followed by a rule that denies all metadata addresses. Allow
 * rules for `any` or for wider blocks, and a default of `allow`, therefore don't allow metadata addresses. Deny rules
 * for `any` or for wider blocks also deny them.
 */
function metadataRules(policy: NetworkPolicy): readonly Rule[] {
  const metadata = policy.rules.flatMap((rule): readonly Rule[] => {
    if (rule.direction === 'ingress') return []
    if (namesMetadata(rule.destination)) return [{ ...rule, direction: 'egress' }]
    return rule.action === 'deny' && coversMetadata(rule.destination)
      ? METADATA_BLOCKS.map((destination) => ({ ...rule, direction: 'egress', destination }))
      : []
  })
  return [...metadata, denyEgress({ group: 'metadata' }), ...METADATA_BLOCKS.map(denyEgress)]
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
