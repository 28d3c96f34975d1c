import type { Cidr } from '../../domain/cidr.ts'
import { netnsPath, SLOT_PREFIX, slotAddresses, slotDevice, UPLINK_SLOT, type NetworkNames } from './network-names.ts'
import { deleteLink, deleteNamespace, ipBatch, namespaceNames, runInNamespace } from './network-commands.ts'

/** Idle connections are kept at least 2 hours and 4 minutes (RFC 5382, REQ-5). */
const IDLE_CONNECTION_SECS = 7440

/**
 * Creates the router's namespace and its veth pair to the host. Nothing is forwarded until the packet filter allows it.
 */
export async function createRouter(names: NetworkNames, addressPool: Cidr): Promise<void> {
  const cable = slotAddresses(addressPool, UPLINK_SLOT)
  await ipBatch(names.commands, [`netns add ${names.routerNamespace}`])
  // before any device exists, so the still empty filter drops even the first packet
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
 * Creates the namespaces of slots, each with addresses and a veth pair to the router, which drops everything they send.
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
 * Creates a slot's namespace with only a loopback device.
 *
 * Programs in it, and in one with a veth pair, may listen on every port and ping. The namespace belongs to the host's
 * user namespace, so `CAP_NET_BIND_SERVICE` and `CAP_NET_RAW` of a sandbox's user 0 mean nothing there
 * (user_namespaces(7)).
 */
export async function createIsolatedNamespace(names: NetworkNames, slot: number): Promise<void> {
  await names.commands.callSystem(['network', netnsPath(names.sandboxNamespace(slot))])
}

/** Removes the namespaces and devices of slots. What is already gone is fine. */
export async function removeSandboxNamespaces(names: NetworkNames, slots: readonly number[]): Promise<void> {
  if (slots.length === 0) return
  const removals = await Promise.allSettled([
    // the devices too: the kernel would remove them later, when the slots may already be in use again
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

/** Removes all namespaces and devices of an installation. What is already gone is fine. */
export async function removeAllNamespaces(names: NetworkNames): Promise<void> {
  await deleteLink(names.commands, names.uplinkDevice)
  for (const namespace of await namespaceNames()) {
    if (names.slotOf(namespace) !== null) await deleteNamespace(names.commands, namespace)
  }
  await deleteNamespace(names.commands, names.routerNamespace)
}

/**
 * Commands that bring a device up with an IPv4 address. `addrgenmode none` keeps the kernel from adding an IPv6
 * address.
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
  // tracks connections only from their first packet, so an ended one can't be picked up again
  'echo 0 > netfilter/nf_conntrack_tcp_loose',
  `echo ${String(IDLE_CONNECTION_SECS)} > netfilter/nf_conntrack_tcp_timeout_established`,
].join(' && ')
