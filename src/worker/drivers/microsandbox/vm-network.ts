import type { NetworkPolicy, Rule, SandboxSpec } from '../../../domain/spec/spec.ts'
import type { NetworkInterface } from '../../../domain/spec/network-interface.ts'
import type { PublishedPort } from '../../../domain/spec/published-ports.ts'

/** A virtual machine's network, in the form that the SDK's builder accepts. */
export type VmNetwork = {
  readonly policy: NetworkPolicy
  readonly max_connections: number
  readonly interface: NetworkInterface | null
  /** The guest's ports on which the runtime listens, in the network namespace of the run. */
  readonly ports: readonly Pick<PublishedPort, 'guest_port' | 'protocol'>[]
}

/** The most connections that the runtime can be set to (0.6); its default is 256. The router's bound is the one that is meant. */
const CONNECTIONS_MAX = 4_096

/**
 * Translates a spec's network. Returns null if the sandbox has no network. The router of the worker enforces the policy
 * (decision 55), so the runtime lets everything pass but what never leaves its process: the loopback device of the namespace, and
 * the gateway except its DNS.
 */
export function makeVmNetwork({ network }: Pick<SandboxSpec, 'network'>): VmNetwork | null {
  if (!network.enabled) return null
  const ports = (network.ports ?? []).map(({ guest_port, protocol }) => ({ guest_port, protocol }))
  return {
    policy: { default_egress: 'allow', default_ingress: 'allow', rules: OWN_DENIALS },
    max_connections: CONNECTIONS_MAX,
    interface: network.interface ?? null,
    ports: ports.filter((port, index) => ports.findIndex((one) => isSame(one, port)) === index),
  }
}

type GuestPort = VmNetwork['ports'][number]

function isSame(one: GuestPort, other: GuestPort): boolean {
  return one.guest_port === other.guest_port && one.protocol === other.protocol
}

const DENY: Rule = { direction: 'egress', destination: { group: 'loopback' }, action: 'deny', ports: [], protocols: [] }
const OWN_DENIALS: readonly Rule[] = [
  DENY,
  {
    ...DENY,
    destination: { group: 'host' },
    protocols: ['tcp', 'udp'],
    ports: [
      { start: 0, end: 52 },
      { start: 54, end: 65_535 },
    ],
  },
  { ...DENY, destination: { group: 'host' }, protocols: ['icmpv4', 'icmpv6'] },
]
