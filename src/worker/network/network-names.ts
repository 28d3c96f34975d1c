import { formatIpv4, type Cidr } from '../../domain/cidr.ts'
import type { HostCommands } from '../processes/system-calls.ts'

/**
 * The names that one installation uses on a machine, which carry its prefix so that installations never meet, and what runs
 * its commands there.
 */
export type NetworkNames = {
  readonly commands: HostCommands
  readonly routerNamespace: string
  /** The host's end of the cable to the router. */
  readonly uplinkDevice: string
  /** The nftables table in the host's own namespace. */
  readonly hostTable: string
  sandboxNamespace(slot: number): string
  /** The slot that a namespace's name tells, or null when it is not a sandbox of this installation. */
  slotOf(namespace: string): number | null
}

/** Names for a prefix of 1 to 6 small letters and digits: a device's name has at most 15 characters. */
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

/** Where the runtime finds a named network namespace (iproute2's convention). */
export const NETNS_DIR = '/run/netns'

export function netnsPath(namespace: string): string {
  return `${NETNS_DIR}/${namespace}`
}

/** The two usable addresses of a slot's /30: the nearer to the host, and the further. */
type SlotAddresses = { readonly gateway: string; readonly sandbox: string }

/** The slot of the cable between host and router: `gateway` is the host's end, `sandbox` the router's. */
export const UPLINK_SLOT = 0

export const SLOT_PREFIX = 30
const SLOT_SIZE = 4n

/** How many /30 a pool holds, the uplink's included. */
export function slotCount(addressPool: Cidr): number {
  return Number((addressPool.last - addressPool.first + 1n) / SLOT_SIZE)
}

export function slotAddresses(addressPool: Cidr, slot: number): SlotAddresses {
  const base = addressPool.first + BigInt(slot) * SLOT_SIZE
  return { gateway: formatIpv4(base + 1n), sandbox: formatIpv4(base + 2n) }
}

/** The device of a slot in the router. */
export function slotDevice(slot: number): string {
  return `v${String(slot)}`
}
