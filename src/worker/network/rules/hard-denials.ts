import type { Cidr } from '../../../domain/cidr.ts'
import {
  addressesOf,
  DENIAL_WORDS,
  deniedAddresses,
  type OperatorRanges,
} from '../../../domain/network/operator-denials.ts'
import type { OwnRanges } from './own-ranges.ts'

/**
 * Returns a function with the addresses that no policy opens to a sandbox: those of the sandboxes themselves and of this machine, and
 * what the operator denies. Usually all runs have the same. To find them takes 0.5 ms of a start, so the last ones are kept
 * (20 starts at once, 2 busy cores, 2026-11).
 */
export function makeHardDenials(
  addressPool: Cidr,
  ownRanges: OwnRanges,
): (operator: OperatorRanges) => readonly Cidr[] {
  let last: { readonly key: string; readonly denied: readonly Cidr[] } | null = null
  return (operator) => {
    const own = ownRanges.addresses()
    const key = JSON.stringify([operator, own, ...DENIAL_WORDS.map((word) => ownRanges.rangesOf(word))])
    if (last?.key !== key) {
      const denied = deniedAddresses(operator, (word) => ownRanges.rangesOf(word))
      last = { key, denied: [addressPool, ...addressesOf(own), ...denied] }
    }
    return last.denied
  }
}
