import { cidr, formatIpv4Cidr, type Cidr } from '../../domain/cidr.ts'
import type { Log } from '../../lib/log.ts'
import { localHostCommands } from '../processes/system-calls.ts'
import { chooseAddressPool } from './address-pool.ts'
import { closeHostForwarding } from './host-forwarding.ts'
import { createRouter, removeAllNamespaces } from './namespaces.ts'
import { deviceNames, namespaceNames, nft } from './network-commands.ts'
import { networkNames, type NetworkNames } from './network-names.ts'
import { openNetworkRecords, type NetworkRecords } from './network-records.ts'

/** Removes all network state of an installation from this machine, including the networks of runs. May be repeated. */
export async function removeInstallationNetworks(options: {
  readonly dir: string
  readonly namePrefix: string
}): Promise<void> {
  await removeInstallation(networkNames(options.namePrefix, localHostCommands), await openNetworkRecords(options.dir))
}

/** Removes all network state of an installation from this machine, and its records. May be repeated. */
export async function removeInstallation(names: NetworkNames, records: NetworkRecords): Promise<void> {
  await closeHostForwarding(names)
  await removeAllNamespaces(names)
  await records.clear()
}

/** Returns the address pool in use. Creates the router unless a complete router exists. */
export async function ensureRouter(
  names: NetworkNames,
  records: NetworkRecords,
  options: { readonly addressPool: string },
): Promise<Cidr> {
  const record = records.readRouter()
  const hasRouter =
    (await namespaceNames()).includes(names.routerNamespace) &&
    (await deviceNames(names.commands)).includes(names.uplinkDevice)
  if (record !== null && hasRouter) return cidr(record.pool)
  // The router is incomplete or its record is lost, so the state of the runs' networks is unknown. Everything is
  // removed and created again.
  await closeHostForwarding(names)
  await removeAllNamespaces(names)
  for (const run of records.runs().keys()) await records.removeRun(run)
  const addressPool = await chooseAddressPool(options.addressPool)
  await createRouter(names, addressPool)
  records.writeRouter({ pool: formatIpv4Cidr(addressPool) })
  return addressPool
}

/** Whether the kernel can count connections in the router. If not, sandboxes run without a bound, and the log says so. */
export async function canCountConnections(names: NetworkNames, log: Log): Promise<boolean> {
  const trial = ['add table inet trial', 'add chain inet trial c', 'add rule inet trial c ct count over 1 drop']
  try {
    await nft(names.commands, [...trial, 'delete table inet trial'], names.routerNamespace)
    return true
  } catch (error) {
    log.warn({ error }, "the kernel can't count connections (nft_connlimit), so sandboxes have no bound of connections")
    return false
  }
}

/** Whether the kernel can redirect connections to the egress process. If not, rules by name are refused. */
export async function canRedirectConnections(names: NetworkNames, log: Log): Promise<boolean> {
  const rule = 'meta l4proto tcp tproxy ip to 127.0.0.1:1 meta mark set 1 accept'
  const chain = 'add chain inet trial c { type filter hook prerouting priority mangle; }'
  const trial = ['add table inet trial', chain, `add rule inet trial c ${rule}`, 'delete table inet trial']
  try {
    await nft(names.commands, trial, names.routerNamespace)
    return true
  } catch (error) {
    log.warn({ error }, "the kernel can't redirect connections (nft_tproxy), so rules by domain name are refused")
    return false
  }
}
