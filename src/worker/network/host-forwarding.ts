/**
 * Configures the host's own network namespace for sandboxes: one nftables table, and IPv4 forwarding on the devices
 * with routes to the outside. If a device did not forward before, packets that arrive on it are forwarded only to the
 * uplinks of sandbox networks. Packets from the uplink reach no address of the host except the DNS forwarder.
 */
import { writeFile } from 'node:fs/promises'
import { Type } from 'typebox'
import { Value } from 'typebox/value'
import { formatIpv4Cidr, type Cidr } from '../../domain/cidr.ts'
import { SLOT_PREFIX, type NetworkNames } from './network-names.ts'
import type { DnsTarget } from './rules/packet-filter.ts'
import { hostRoutes } from './address-pool.ts'
import { readFileOrNull } from '../../lib/files.ts'
import { deviceNames, listSet, nft } from './network-commands.ts'

/**
 * Creates or replaces the host's table, and enables forwarding on devices that were added since the last call. May be
 * repeated.
 */
export async function openHostForwarding(
  names: NetworkNames,
  options: { readonly addressPool: Cidr; readonly dns: DnsTarget },
): Promise<void> {
  const opened = await devicesToOpen(names)
  // the table must exist before the forwarding that it restricts
  await nft(names.commands, hostRules(names, { ...options, opened }))
  for (const device of [names.uplinkDevice, ...opened]) await setForwarding(device, '1')
}

/** Disables the forwarding that `openHostForwarding` enabled, then deletes the table. May be repeated. */
export async function closeHostForwarding(names: NetworkNames): Promise<void> {
  const opened = await openedDevices(names)
  if (!(await hasOtherInstallation(names))) for (const device of opened) await setForwarding(device, '0')
  await nft(names.commands, [`add table inet ${names.hostTable}`, `delete table inet ${names.hostTable}`])
}

/**
 * Returns the devices with routes to the outside on which forwarding is off, or on only for sandboxes. Empty if the
 * host forwards anyway (`ip_forward`). If the machine has another installation, every device with a route is included,
 * because that installation may have enabled its forwarding. The last installation to close then disables the
 * forwarding.
 */
async function devicesToOpen(names: NetworkNames): Promise<readonly string[]> {
  if ((await isForwarding('all')) === true) return []
  const leading = (await hostRoutes()).filter(({ isUnicast }) => isUnicast).map(({ device }) => device)
  const candidates = [...new Set(leading)].filter((device) => device !== '' && device !== 'lo' && !isUplink(device))
  const opened = await openedDevices(names)
  const isShared = await hasOtherInstallation(names)
  const flags = await Promise.all(candidates.map(isForwarding))
  return candidates.filter((device, index) => isShared || opened.includes(device) || flags[index] === false)
}

/**
 * Returns the devices on which this installation enabled forwarding. They are stored as a set in the host's table,
 * because the table and the enabled forwarding both end at a reboot or at `closeHostForwarding`.
 */
async function openedDevices(names: NetworkNames): Promise<readonly string[]> {
  const listing = await listSet(names.commands, `inet ${names.hostTable} ${OPENED}`)
  if (listing === null) return []
  const { nftables } = Value.Parse(SetListing, listing)
  return nftables.flatMap((entry) => entry.set?.elem ?? [])
}

const OPENED = 'opened'

/** The part of nft's JSON that lists the elements of a set (libnftables-json(5)). */
const SetListing = Type.Object({
  nftables: Type.Array(
    Type.Object({ set: Type.Optional(Type.Object({ elem: Type.Optional(Type.Array(Type.String())) })) }),
  ),
})

function hostRules(
  names: NetworkNames,
  {
    addressPool,
    dns,
    opened,
  }: { readonly addressPool: Cidr; readonly dns: DnsTarget; readonly opened: readonly string[] },
): readonly string[] {
  const uplink = `"${names.uplinkDevice}"`
  const cable = formatIpv4Cidr({ ...addressPool, prefix: SLOT_PREFIX })
  const elements = `elements = { ${opened.map((device) => `"${device}"`).join(', ')} };`
  return [
    `add table inet ${names.hostTable}`,
    `delete table inet ${names.hostTable}`,
    `table inet ${names.hostTable} {`,
    `set ${OPENED} { type ifname; ${opened.length === 0 ? '' : elements} }`,
    // This chain runs before any address translation, so a port that a container engine publishes still counts as the
    // host's.
    'chain arriving { type filter hook prerouting priority mangle; policy accept;',
    `iifname != ${uplink} ip daddr ${cable} drop`,
    `iifname != ${uplink} accept`,
    'meta nfproto != ipv4 drop',
    `ip daddr ${dns.address} meta l4proto { tcp, udp } th dport ${String(dns.port)} accept`,
    // the host itself connects to published ports, and the router lets nothing else of it through
    'ct state established ct direction reply accept',
    'fib daddr type { local, broadcast, multicast, anycast } drop',
    '}',
    'chain passing { type filter hook forward priority filter; policy accept;',
    `oifname ${uplink} ct state != { established, related } drop`,
    // limits the TCP segment size of both directions to the path MTU of a tunnel or cloud network
    `iifname ${uplink} tcp flags syn tcp option maxseg size set rt mtu`,
    `iifname @${OPENED} oifname != "${ANY_UPLINK}" drop`,
    '}',
    // of the machine's accounts only the worker's own reaches sandboxes: others go through the ports that are published
    'chain leaving { type filter hook output priority filter; policy accept;',
    `oifname ${uplink} meta skuid != 0 drop`,
    '}',
    'chain masking { type nat hook postrouting priority srcnat; policy accept;',
    `ip saddr ${cable} oifname != ${uplink} masquerade`,
    '}',
    '}',
  ]
}

/** The nftables pattern for the uplink devices of all installations on this machine. */
const ANY_UPLINK = 'sy*'

function isUplink(device: string): boolean {
  return /^sy[a-z0-9]{1,6}-up$/.test(device)
}

async function hasOtherInstallation(names: NetworkNames): Promise<boolean> {
  return (await deviceNames(names.commands)).some((device) => isUplink(device) && device !== names.uplinkDevice)
}

function forwardingFile(device: string): string {
  return `/proc/sys/net/ipv4/conf/${device.replaceAll('.', '/')}/forwarding`
}

async function isForwarding(device: string): Promise<boolean | null> {
  const text = await readFileOrNull(forwardingFile(device))
  return text === null ? null : text.trim() === '1'
}

async function setForwarding(device: string, value: '0' | '1'): Promise<void> {
  const file = forwardingFile(device)
  if ((await readFileOrNull(file)) !== null) await writeFile(file, value)
}
