/**
 * The address that a sandbox shows as its own. The router knows each sandbox by the address of its slot, so it translates every
 * packet at the device of the sandbox, without tracking connections. Any number of sandboxes may show the same address.
 */
import { contains, cidr, formatIpv4Cidr, type Cidr } from '../../domain/cidr.ts'
import type { NetworkInterface } from '../../domain/spec/network-interface.ts'
import { OwnerVisibleError } from '../start-error.ts'
import { ipBatch } from './network-commands.ts'
import { SLOT_PREFIX, slotDevice, type NetworkNames } from './network-names.ts'
import { TABLE } from './rules/render-rule.ts'

/** The rules that are common to all sandboxes. They translate before connections are tracked, and after. */
export function translationBaseRules(): readonly string[] {
  const chains = {
    translating_in: 'type filter hook prerouting priority -310; policy accept;',
    translating_out: 'type filter hook postrouting priority 310; policy accept;',
  }
  return [
    `add map ${TABLE} slot_addresses { type ifname . ipv4_addr : ipv4_addr; }`,
    `add set ${TABLE} shown_devices { type ifname; }`,
    `add map ${TABLE} shown_addresses { type ifname . ipv4_addr : ipv4_addr; }`,
    ...Object.entries(chains).flatMap(([name, hook]) => [
      `add chain ${TABLE} ${name} { ${hook} }`,
      `flush chain ${TABLE} ${name}`,
    ]),
    // An ICMP error has the packet that caused it, with the address of the slot, and the sandbox would not know it.
    `insert rule ${TABLE} refusing meta l4proto tcp iifname @shown_devices reject with tcp reset`,
    `add rule ${TABLE} local_out oifname @shown_devices tcp flags & (syn | rst) == rst accept`,
    `add rule ${TABLE} translating_in ip saddr set iifname . ip saddr map @slot_addresses`,
    `add rule ${TABLE} translating_out ip daddr set oifname . ip daddr map @shown_addresses`,
  ]
}

type Translation = { readonly slot: number; readonly address: string; readonly shown: string }

/** The commands that begin the translation for a sandbox. */
export function translationRules(translation: Translation): readonly string[] {
  return elementsOf(translation).map(([map, element]) => `add element ${TABLE} ${map} { ${element} }`)
}

/** The commands that end the translation for a sandbox. They also succeed if it has none. */
export function endTranslation(translation: Translation): readonly string[] {
  return elementsOf(translation).flatMap(([map, element]) => [
    `add element ${TABLE} ${map} { ${element} }`,
    `delete element ${TABLE} ${map} { ${element} }`,
  ])
}

function elementsOf({ slot, address, shown }: Translation): readonly (readonly [string, string])[] {
  const device = `"${slotDevice(slot)}"`
  return [
    ['slot_addresses', `${device} . ${shown} : ${address}`],
    ['shown_addresses', `${device} . ${address} : ${shown}`],
    ['shown_devices', device],
  ]
}

/** Configures the device in the namespace of a sandbox. Rejects with `OwnerVisibleError` if the address is the worker's. */
export async function configureDevice(
  names: NetworkNames,
  { ipv4_address, mac, mtu }: NetworkInterface,
  { slot, gateway, addressPool }: { readonly slot: number; readonly gateway: string; readonly addressPool: Cidr },
): Promise<void> {
  if (ipv4_address !== null && contains(addressPool, cidr(ipv4_address)))
    throw new OwnerVisibleError(
      `network.interface.ipv4_address: ${ipv4_address} is in ${formatIpv4Cidr(addressPool)}, which this worker uses for its networks`,
    )
  const octets = mac?.map((octet) => octet.toString(16).padStart(2, '0')).join(':')
  const subnet = formatIpv4Cidr({ ...cidr(gateway), first: cidr(gateway).first - 1n, prefix: SLOT_PREFIX })
  // every packet must have the shown address as its source, also those to the gateway
  const source = ipv4_address === null ? '' : ` src ${ipv4_address}`
  await ipBatch(
    names.commands,
    [
      ...(octets === undefined
        ? []
        : ['link set dev eth0 down', `link set dev eth0 address ${octets}`, 'link set dev eth0 up']),
      ...(mtu === null ? [] : [`link set dev eth0 mtu ${String(mtu)}`]),
      ...(ipv4_address === null ? [] : [`addr replace ${ipv4_address}/32 dev eth0`]),
      `route replace ${subnet} dev eth0 scope link${source}`,
      `route replace default via ${gateway} dev eth0${source}`,
      'route replace local default dev eth0 table main metric 1', // `keep_from_neighbours` in netlink.pl; lost with `down`
    ],
    names.sandboxNamespace(slot),
  )
  // a packet that one end of the cable may send must not be too large for the other
  if (mtu !== null)
    await ipBatch(names.commands, [`link set dev ${slotDevice(slot)} mtu ${String(mtu)}`], names.routerNamespace)
}
