import { Resolver } from 'node:dns/promises'
import { isIP } from 'node:net'
import { contains, parseCidr } from '../../../domain/cidr.ts'
import { NEVER_DIALLED_CIDRS } from '../../../domain/network/network-groups.ts'
import { decidePacket, type PacketRule } from '../../../domain/network/network-policy.ts'
import type { DnsSettings } from '../../../domain/spec/dns-settings.ts'
import type { Clock } from '../../../lib/clock.ts'
import type { ResolverAddress, Transport } from './dns-upstream.ts'

/** How the queries of one sandbox are answered. */
export type ResolverSettings = {
  /** The nameservers to ask, in order. Those that the sandbox itself may not reach by this protocol are left out. */
  find(transport: Transport): Promise<readonly ResolverAddress[]>
  readonly timeoutMs: number
  readonly hasRebindProtection: boolean
}

/** The settings of the sandboxes that have their own, by the address of the sandbox. */
export type SandboxResolvers = {
  set(sandbox: string, dns: DnsSettings, egress: readonly PacketRule[]): void
  remove(sandbox: string): void
  of(sandbox: string): ResolverSettings | null
}

/** The maximum number of the worker's resolvers to ask for one query, the same as in glibc, and of addresses of one nameserver. */
export const RESOLVERS_MAX = 3

/** How long the addresses of a nameserver that is given by name are used. */
const ADDRESSES_KEPT_MS = 60_000

type SandboxResolversOptions = {
  /** The worker's own resolvers, which find nameservers that are given by name. */
  readonly hostResolvers: readonly string[]
  /** The addresses of this machine except loopback. */
  readonly ownAddresses: () => readonly string[]
  readonly clock: Pick<Clock, 'monotonicMs'>
}

export function makeSandboxResolvers({
  hostResolvers,
  ownAddresses,
  clock,
}: SandboxResolversOptions): SandboxResolvers {
  const sandboxes = new Map<string, ResolverSettings>()
  const known = new Map<string, { readonly addresses: readonly string[]; readonly foundMs: number }>()

  async function addressesOf(host: string): Promise<readonly string[]> {
    if (isIP(host) !== 0) return [host]
    const now = clock.monotonicMs()
    for (const [name, { foundMs }] of known) if (now - foundMs >= ADDRESSES_KEPT_MS) known.delete(name)
    const kept = known.get(host)
    if (kept !== undefined) return kept.addresses
    const resolver = new Resolver({ timeout: 2_000, tries: 1 })
    resolver.setServers([...hostResolvers])
    const addresses = await resolver.resolve4(host).catch(() => [])
    if (addresses.length > 0) known.set(host, { addresses, foundMs: now })
    return addresses
  }

  return {
    set(sandbox, { nameservers, query_timeout_ms, rebind_protection }, egress) {
      // The forwarder asks from the host, so nothing else would judge its queries by the policy of the sandbox. There,
      // loopback addresses and 0.0.0.0 are the host, and its own addresses may be newer than the policy's denials.
      const mayReach = ({ address, port }: ResolverAddress, protocol: Transport): boolean => {
        const peer = parseCidr(address)
        if (peer?.family !== 4 || ownAddresses().includes(address)) return false
        if (NEVER_DIALLED_CIDRS.some((block) => contains(block, peer))) return false
        return decidePacket(egress, { peer, protocol, port }) === 'allow'
      }
      const find = async (transport: Transport): Promise<readonly ResolverAddress[]> => {
        if (nameservers.length === 0)
          return hostResolvers.slice(0, RESOLVERS_MAX).map((address) => ({ address, port: 53 }))
        const found = await Promise.all(
          nameservers.map(async ({ host, port }) => {
            const resolvers = (await addressesOf(host)).map((address): ResolverAddress => ({ address, port }))
            return resolvers.filter((resolver) => mayReach(resolver, transport)).slice(0, RESOLVERS_MAX)
          }),
        )
        return found.flat()
      }
      sandboxes.set(sandbox, { find, timeoutMs: query_timeout_ms, hasRebindProtection: rebind_protection })
    },
    remove(sandbox) {
      sandboxes.delete(sandbox)
    },
    of: (sandbox) => sandboxes.get(sandbox) ?? null,
  }
}
