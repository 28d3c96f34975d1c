import type { Config } from '../../config.ts'
import { overlaps, parseCidr } from '../../domain/cidr.ts'
import { LOOPBACK_CIDRS } from '../../domain/network/network-groups.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { hostOfUrl, makeResolvedHosts } from '../../lib/outbound/resolved-hosts.ts'
import { makeHostAddresses } from '../../worker/network/rules/own-ranges.ts'

/** What this process needs to know to find the addresses that no sandbox may reach. */
type Places = {
  /** The connection string of PostgreSQL. */
  readonly database: string
  /** Returns the URLs by which workers reach the server processes. */
  readonly controlPlane: () => readonly string[]
}

/**
 * Returns a function that lists the operator's denials: the ranges and words of `SANDYARD_NETWORK_DENY`, followed by the
 * addresses of the database and the control plane if the setting names them.
 */
export async function openNetworkDenials(
  config: Pick<Config, 'networkDeny'>,
  { database, controlPlane }: Places,
  log: Log,
): Promise<() => readonly string[]> {
  const denies = (word: string): boolean => config.networkDeny.includes(word)
  const urls = (): readonly string[] => [
    ...(denies('database') ? databaseHosts(database) : []),
    ...(denies('control_plane') ? controlPlane().flatMap((url) => hostOfUrl(url) ?? []) : []),
  ]
  const hosts = makeResolvedHosts({ clock: systemClock, log }, urls)
  await hosts.refresh()
  const ownAddresses = makeHostAddresses(systemClock)
  return () => [
    ...config.networkDeny,
    ...hosts.addresses().filter(isElsewhere),
    ...(denies('control_plane') ? ownAddresses() : []),
  ]
}

/** The hosts of a connection string. Empty for a local socket. */
function databaseHosts(database: string): readonly string[] {
  if (!URL.canParse(database)) return []
  const url = new URL(database)
  const named = url.searchParams.get('host') ?? hostOfUrl(database) ?? ''
  return named.split(',').filter((host) => host !== '' && !host.startsWith('/'))
}

/** Whether an address is not loopback. The loopback address of a sandbox is the sandbox's own. */
function isElsewhere(address: string): boolean {
  const block = parseCidr(address)
  return block !== null && !LOOPBACK_CIDRS.some((own) => overlaps(own, block))
}
