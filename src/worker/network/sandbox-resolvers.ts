import { Resolver } from 'node:dns/promises'
import { isIP } from 'node:net'
import { parseCidr } from '../../domain/cidr.ts'
import { decidePacket, type PacketRule } from '../../domain/network/network-policy.ts'
import type { DnsSettings } from '../../domain/spec/dns-settings.ts'
import type { Clock } from '../../lib/clock.ts'
import type { ResolverAddress } from './dns-upstream.ts'

/** How the queries of one sandbox are answered. */
export type ResolverSettings = {
  /** The nameservers to ask, in order. Those that the sandbox itself may not reach are left out. */
  find(): Promise<readonly ResolverAddress[]>
  readonly timeoutMs: number
  readonly hasRebindProtection: boolean
}

/** The settings of the sandboxes that have their own, by the address of the sandbox. */
export type SandboxResolvers = {
  set(sandbox: string, dns: DnsSettings, egress: readonly PacketRule[]): void
  remove(sandbox: string): void
  of(sandbox: string): ResolverSettings | null
}

/** How long the addresses of a nameserver that is given by name are used. */
const ADDRESSES_KEPT_MS = 60_000

/** @param hostResolvers the worker's own resolvers, which find nameservers that are given by name */
export function makeSandboxResolvers(hostResolvers: readonly string[], clock: Clock): SandboxResolvers {
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
      // The forwarder asks from the host, so nothing else would judge its queries by the policy of the sandbox.
      const mayReach = (address: string, port: number): boolean => {
        const peer = parseCidr(address)
        return peer !== null && decidePacket(egress, { peer, protocol: 'udp', port }) === 'allow'
      }
      const find = async (): Promise<readonly ResolverAddress[]> => {
        if (nameservers.length === 0) return hostResolvers.map((address) => ({ address, port: 53 }))
        const found = await Promise.all(
          nameservers.map(async ({ host, port }) =>
            (await addressesOf(host)).map((address): ResolverAddress => ({ address, port })),
          ),
        )
        return found.flat().filter(({ address, port }) => mayReach(address, port))
      }
      sandboxes.set(sandbox, { find, timeoutMs: query_timeout_ms, hasRebindProtection: rebind_protection })
    },
    remove(sandbox) {
      sandboxes.delete(sandbox)
    },
    of: (sandbox) => sandboxes.get(sandbox) ?? null,
  }
}
