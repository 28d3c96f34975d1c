import { formatIpv4Cidr, type Cidr } from '../../domain/cidr.ts'
import { netnsPath, SLOT_PREFIX, slotAddresses, slotDevice, UPLINK_SLOT, type NetworkNames } from './network-names.ts'
import { deleteLink, deleteNamespace, ipBatch, namespaceNames, nft, runInNamespace } from './network-commands.ts'

/** How long an idle connection stays open. The minimum is 2 hours and 4 minutes (RFC 5382, REQ-5). */
const IDLE_CONNECTION_SECS = 7440

/** A rule makes the kernel load its connection tracking. On a machine that has just booted, its settings don't exist before. */
const LOAD_CONNECTION_TRACKING = [
  'add table inet trial',
  'add chain inet trial c',
  'add rule inet trial c ct state new',
  'delete table inet trial',
]

/**
 * Creates the router's namespace and its veth pair to the host. The router forwards no packets until the packet filter
 * allows it.
 */
export async function createRouter(names: NetworkNames, addressPool: Cidr): Promise<void> {
  const cable = slotAddresses(addressPool, UPLINK_SLOT)
  await ipBatch(names.commands, [`netns add ${names.routerNamespace}`])
  await nft(names.commands, LOAD_CONNECTION_TRACKING, names.routerNamespace)
  // before any device exists, so that not even the first packet is forwarded
  await runInNamespace(names.commands, ['sh', '-c', ROUTER_SETTINGS], { namespace: names.routerNamespace })
  await ipBatch(names.commands, [
    `link add ${names.uplinkDevice} type veth peer name up0 netns ${names.routerNamespace}`,
    ...deviceUp(names.uplinkDevice, cable.gateway),
  ])
  await ipBatch(
    names.commands,
    [...deviceUp('up0', cable.sandbox), `route add default via ${cable.gateway}`],
    names.routerNamespace,
  )
}

/**
 * Adds the host's route to the sandboxes, for replies of the DNS forwarder. The router lets only replies pass. May be
 * repeated: a router of an earlier version has no such route.
 */
export async function addRouteToSandboxes(names: NetworkNames, addressPool: Cidr): Promise<void> {
  const { sandbox: router } = slotAddresses(addressPool, UPLINK_SLOT)
  const block = formatIpv4Cidr(addressPool)
  await ipBatch(names.commands, [`route replace ${block} via ${router} dev ${names.uplinkDevice}`])
}

/**
 * Creates the namespaces of slots, each with an address and a veth pair to the router. The router drops all packets
 * from them until a policy is attached.
 */
export async function createSandboxNamespaces(
  names: NetworkNames,
  addressPool: Cidr,
  slots: readonly number[],
): Promise<void> {
  for (const slot of slots) {
    const { gateway, sandbox } = slotAddresses(addressPool, slot)
    const [path, router] = [netnsPath(names.sandboxNamespace(slot)), netnsPath(names.routerNamespace)]
    const cable = [router, slotDevice(slot), gateway, sandbox, String(SLOT_PREFIX)] as const
    await names.commands.callSystem(['network', path, ...cable])
  }
}

/**
 * Creates a slot's namespace without a veth pair. Its only device is the loopback device.
 *
 * In both kinds of namespace, programs may listen on every port and send pings. Settings of the namespace allow this,
 * because the namespace belongs to the host's user namespace. The capabilities `CAP_NET_BIND_SERVICE` and `CAP_NET_RAW`
 * of a sandbox's user 0 have no effect there (user_namespaces(7)).
 */
export async function createIsolatedNamespace(names: NetworkNames, slot: number): Promise<void> {
  await names.commands.callSystem(['network', netnsPath(names.sandboxNamespace(slot))])
}

/** Removes the namespaces and devices of slots, where they exist. */
export async function removeSandboxNamespaces(names: NetworkNames, slots: readonly number[]): Promise<void> {
  if (slots.length === 0) return
  const removals = await Promise.allSettled([
    // removes the devices explicitly: the kernel removes them with their namespace, but later, when the slots may be in
    // use again
    ipBatch(
      names.commands,
      slots.map((slot) => `link del ${slotDevice(slot)}`),
      names.routerNamespace,
    ),
    ipBatch(
      names.commands,
      slots.map((slot) => `netns del ${names.sandboxNamespace(slot)}`),
    ),
  ])
  if (removals.every(({ status }) => status === 'fulfilled')) return
  const existing = await namespaceNames()
  for (const slot of slots) {
    if (existing.includes(names.routerNamespace))
      await deleteLink(names.commands, slotDevice(slot), names.routerNamespace)
    if (existing.includes(names.sandboxNamespace(slot)))
      await deleteNamespace(names.commands, names.sandboxNamespace(slot))
  }
}

/** Removes all namespaces and devices of an installation, where they exist. */
export async function removeAllNamespaces(names: NetworkNames): Promise<void> {
  await deleteLink(names.commands, names.uplinkDevice)
  for (const namespace of await namespaceNames()) {
    if (names.slotOf(namespace) !== null) await deleteNamespace(names.commands, namespace)
  }
  await deleteNamespace(names.commands, names.routerNamespace)
}

/**
 * Returns the commands that bring a device up with an IPv4 address. `addrgenmode none` keeps the kernel from adding an
 * IPv6 address.
 */
function deviceUp(device: string, address: string): readonly string[] {
  return [
    `link set dev ${device} addrgenmode none`,
    `addr add ${address}/${String(SLOT_PREFIX)} dev ${device}`,
    `link set dev ${device} up`,
  ]
}

const ROUTER_SETTINGS = [
  'cd /proc/sys/net',
  'echo 1 > ipv4/ip_forward',
  // tracks a connection only if its first packet was seen, so an ended connection can't be resumed
  'echo 0 > netfilter/nf_conntrack_tcp_loose',
  `echo ${String(IDLE_CONNECTION_SECS)} > netfilter/nf_conntrack_tcp_timeout_established`,
].join(' && ')
