/**
 * What no policy of a tenant can allow, because the operator denies it (`SANDYARD_NETWORK_DENY`). A range is an address
 * block, a group of addresses, or a word for addresses that only a running process knows. The operator can open a range
 * for one organization.
 */
import { cidr, dropContained, parseCidr, subtractAll, type Cidr } from '../cidr.ts'
import type { Destination, Rule } from '../spec/spec.ts'
import { namedGroupAddresses, type AddressSet, type NamedGroup } from './network-groups.ts'

/** The groups that the operator can deny, and open for an organization. */
export const OPERATOR_GROUPS = [
  'metadata',
  'link_local',
  'private',
  'multicast',
  'public',
] as const satisfies readonly NamedGroup[]

/**
 * The words for addresses that depend on the process. `worker`: the subnets of the worker and its resolvers.
 * `database`: the address of PostgreSQL. `control_plane`: the addresses of all server processes.
 */
export const DENIAL_WORDS = ['worker', 'database', 'control_plane'] as const
export type DenialWord = (typeof DENIAL_WORDS)[number]

/** The maximum number of ranges that are open for one organization, and of ranges that the operator denies. */
export const RANGES_MAX = 64

/** The operator's decision for one run. A worker replaces the words in `deny` by the addresses that it knows. */
export type OperatorRanges = { readonly deny: readonly string[]; readonly allow: readonly string[] }

/** The range in its usual form, or null if the text is neither an address block nor a group. */
export function parseRange(text: string): string | null {
  return OPERATOR_GROUPS.find((group) => group === text) ?? (parseCidr(text) === null ? null : text.toLowerCase())
}

/** The accepted ranges, for refusals and help texts. */
export const RANGE_RULE = `an address or CIDR block, such as 10.1.0.0/16, or one of ${OPERATOR_GROUPS.join(', ')}`

/** The addresses of ranges. Words are skipped. */
export function addressesOf(ranges: readonly string[]): readonly Cidr[] {
  return ranges.flatMap((range) => {
    const group = OPERATOR_GROUPS.find((one) => one === range)
    if (group !== undefined) return blocksOf(namedGroupAddresses(group))
    return parseCidr(range) ?? []
  })
}

/**
 * The addresses that are denied to a run. `words` returns the ranges that the worker knows for a word. Ranges that the
 * operator opened for the organization are left out.
 */
export function deniedAddresses(
  { deny, allow }: OperatorRanges,
  words: (word: DenialWord) => readonly string[],
): readonly Cidr[] {
  const known = deny.flatMap((range) => {
    const word = DENIAL_WORDS.find((one) => one === range)
    return word === undefined ? [range] : words(word)
  })
  return subtractAll(dropContained(addressesOf(known)), addressesOf(allow))
}

/** The index of the first rule that allows nothing but denied addresses, or null. */
export function findDeniedRule(rules: readonly Rule[], denied: readonly Cidr[]): number | null {
  const index = rules.findIndex(
    ({ action, direction, destination }) =>
      action === 'allow' && direction !== 'ingress' && isWithin(destination, denied),
  )
  return index === -1 ? null : index
}

function isWithin(destination: Destination, denied: readonly Cidr[]): boolean {
  if (destination === 'any') return false
  if ('cidr' in destination) return subtractAll([cidr(destination.cidr)], denied).length === 0
  if (!('group' in destination) || destination.group === 'host') return false
  return subtractAll(blocksOf(namedGroupAddresses(destination.group)), denied).length === 0
}

function blocksOf({ within, except }: AddressSet): readonly Cidr[] {
  return subtractAll(within, except)
}
