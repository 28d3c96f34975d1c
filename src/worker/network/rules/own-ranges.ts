import { networkInterfaces, type NetworkInterfaceInfo } from 'node:os'
import { contains, parseCidr, type Cidr } from '../../../domain/cidr.ts'
import { LOOPBACK_CIDRS, SPECIAL_CIDRS } from '../../../domain/network/network-groups.ts'
import type { Clock } from '../../../lib/clock.ts'
import type { DenialWord } from '../../../domain/network/operator-denials.ts'

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
  readonly clock: Pick<Clock, 'monotonicMs'>
}): OwnRanges {
  const interfaces = cacheForASecond(known.clock, readInterfaces)
  const resolvers = known.resolvers.map((address) => address.replace(/%.*$/, '')).filter(isSpecial)
  const ranges: Readonly<Record<DenialWord, () => readonly string[]>> = {
    worker: () => [...interfaces().flatMap(({ cidr }) => cidr ?? []), ...resolvers],
    control_plane: known.controlPlane,
    database: () => [], // The control plane replaces this word by addresses: no worker connects to the database.
  }
  return { addresses: () => interfaces().map(({ address }) => address), rangesOf: (word) => ranges[word]() }
}

/** Returns a function that lists the addresses of this machine except loopback, as of a second ago or less. */
export function makeHostAddresses(clock: Pick<Clock, 'monotonicMs'>): () => readonly string[] {
  return cacheForASecond(clock, () => readInterfaces().map(({ address }) => address))
}

/**
 * How old a list of this machine's interfaces may be, in milliseconds. Each start needs it twice in the worker and once in the
 * server. The system takes 0.3 ms to make it: a twentieth of the server's busy time for a life (2026-11).
 */
const MAX_AGE_MS = 1_000

/** Returns a function with the result of `read`, as of a second ago or less. */
export function cacheForASecond<Value>(clock: Pick<Clock, 'monotonicMs'>, read: () => Value): () => Value {
  let last: { readonly value: Value; readonly atMs: number } | null = null
  return () => {
    const nowMs = clock.monotonicMs()
    if (last === null || nowMs - last.atMs > MAX_AGE_MS) last = { value: read(), atMs: nowMs }
    return last.value
  }
}

function readInterfaces(): readonly NetworkInterfaceInfo[] {
  // the loopback device may have other addresses too, which are those of this machine everywhere
  return Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .filter(({ address }) => !isIn(LOOPBACK_CIDRS, address))
}

/** Whether an address is not a public one. A resolver that serves everybody needs no protection. */
function isSpecial(address: string): boolean {
  return isIn(SPECIAL_CIDRS, address)
}

function isIn(blocks: readonly Cidr[], address: string): boolean {
  const block = parseCidr(address)
  return block !== null && blocks.some((outer) => contains(outer, block))
}
