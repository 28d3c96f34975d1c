import { formatIpv4, type Cidr } from '../../domain/cidr.ts'
import type { HostCommands } from '../processes/system-calls.ts'

/**
 * The names of one installation's namespaces, devices and tables on a machine, and the commands to manage them. Each
 * name starts with the installation's prefix, so the names of two installations don't collide.
 */
export type NetworkNames = {
  readonly commands: HostCommands
  readonly routerNamespace: string
  /** The host's end of the veth pair to the router. */
  readonly uplinkDevice: string
  /** The nftables table in the host's own namespace. */
  readonly hostTable: string
  sandboxNamespace(slot: number): string
  /** Returns the slot of a namespace by its name. Null when it isn't a sandbox namespace of this installation. */
  slotOf(namespace: string): number | null
}

/**
 * Creates the names for a prefix of 1 to 6 lower case letters and digits. The prefix must be short, because a device
 * name has at most 15 characters.
 */
export function networkNames(prefix: string, commands: HostCommands): NetworkNames {
  if (!/^[a-z0-9]{1,6}$/.test(prefix)) throw new Error(`a name prefix is 1 to 6 of a-z and 0-9, not ${prefix}`)
  const base = `sy-${prefix}-`
  return {
    commands,
    routerNamespace: `${base}router`,
    uplinkDevice: `sy${prefix}-up`,
    hostTable: `sandyard_${prefix}`,
    sandboxNamespace: (slot) => `${base}${String(slot)}`,
    slotOf: (namespace) => {
      const rest = namespace.startsWith(base) ? namespace.slice(base.length) : ''
      return /^\d{1,9}$/.test(rest) ? Number(rest) : null
    },
  }
}

/** Whether a device is the uplink of an installation on this machine. */
export function isUplinkDevice(device: string): boolean {
  return /^sy[a-z0-9]{1,6}-up$/.test(device)
}

/** The folder of named network namespaces (iproute2's convention). */
export const NETNS_DIR = '/run/netns'

export function netnsPath(namespace: string): string {
  return `${NETNS_DIR}/${namespace}`
}

/**
 * The two usable addresses of a slot's /30 block. `gateway` is the router's end of the veth pair, and `sandbox` the
 * sandbox's end.
 */
type SlotAddresses = { readonly gateway: string; readonly sandbox: string }

/**
 * The slot whose addresses the veth pair between host and router uses. In this slot, `gateway` is the host's end, and
 * `sandbox` the router's end.
 */
export const UPLINK_SLOT = 0

export const SLOT_PREFIX = 30
const SLOT_SIZE = 4n

/** The number of /30 blocks in an address pool, including the uplink's. */
export function slotCount(addressPool: Cidr): number {
  return Number((addressPool.last - addressPool.first + 1n) / SLOT_SIZE)
}

export function slotAddresses(addressPool: Cidr, slot: number): SlotAddresses {
  const base = addressPool.first + BigInt(slot) * SLOT_SIZE
  return { gateway: formatIpv4(base + 1n), sandbox: formatIpv4(base + 2n) }
}

/** Returns the name of a slot's device in the router's namespace. */
export function slotDevice(slot: number): string {
  return `v${String(slot)}`
}
