import { networkInterfaces, type NetworkInterfaceInfo } from 'node:os'
import { contains, parseCidr } from '../../domain/cidr.ts'
import { SPECIAL_CIDRS } from '../../domain/network/network-groups.ts'
import type { DenialWord } from '../../domain/network/operator-denials.ts'

/** What a worker knows about addresses that its sandboxes must not reach. The answers change with its interfaces. */
export type OwnRanges = {
  /** The worker's own addresses. Nobody can open them. */
  addresses(): readonly string[]
  /** The ranges that a word of the operator's denials stands for on this worker. */
  rangesOf(word: DenialWord): readonly string[]
}

/**
 * Reads the ranges from the machine. `resolvers` answer the worker's DNS queries. `controlPlane` returns the addresses
 * by which the worker reaches its control plane.
 */
export function makeOwnRanges(known: {
  readonly resolvers: readonly string[]
  readonly controlPlane: () => readonly string[]
}): OwnRanges {
  const resolvers = known.resolvers.map((address) => address.replace(/%.*$/, '')).filter(isSpecial)
  const ranges: Readonly<Record<DenialWord, () => readonly string[]>> = {
    worker: () => [...interfaces().flatMap(({ cidr }) => cidr ?? []), ...resolvers],
    control_plane: known.controlPlane,
    database: () => [], // The control plane replaces this word by addresses: no worker connects to the database.
  }
  return { addresses: hostAddresses, rangesOf: (word) => ranges[word]() }
}

/** Returns the addresses of this machine except loopback. */
export function hostAddresses(): readonly string[] {
  return interfaces().map(({ address }) => address)
}

function interfaces(): readonly NetworkInterfaceInfo[] {
  return Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .filter(({ internal }) => !internal)
}

/** Whether an address is not a public one. A resolver that serves everybody needs no protection. */
function isSpecial(address: string): boolean {
  const block = parseCidr(address)
  return block !== null && SPECIAL_CIDRS.some((special) => contains(special, block))
}
