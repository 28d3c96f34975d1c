/**
 * The addresses of the destination groups of a network policy. Groups are disjoint. Metadata addresses belong only to
 * `metadata` and the sandbox's gateway only to `host`, so allowing `private` opens neither. Source of the ranges: the
 * IANA special-purpose address registries (RFC 6890 and its successors).
 */
import { cidr, type Cidr } from '../cidr.ts'
import type { DestinationGroup } from '../spec/spec.ts'

/** The addresses that are in any block of `within` and in no block of `except`. */
export type AddressSet = { readonly within: readonly Cidr[]; readonly except: readonly Cidr[] }

export const ALL_ADDRESSES: readonly Cidr[] = [cidr('0.0.0.0/0'), cidr('::/0')]

/**
 * The addresses where clouds serve the metadata of a machine, including credentials: AWS, GCP, Azure and others, and
 * Alibaba.
 */
export const METADATA_ADDRESSES = ['169.254.169.254', 'fd00:ec2::254', '100.100.100.200'] as const
export const METADATA_CIDRS: readonly Cidr[] = METADATA_ADDRESSES.map(cidr)

/** The addresses of this machine itself. */
export const LOOPBACK_CIDRS: readonly Cidr[] = ['127.0.0.0/8', '::1'].map(cidr)
const PRIVATE = ['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', '100.64.0.0/10', 'fc00::/7'].map(cidr)
const LINK_LOCAL = ['169.254.0.0/16', 'fe80::/10'].map(cidr)
const MULTICAST = ['224.0.0.0/4', '255.255.255.255', 'ff00::/8'].map(cidr)

/**
 * Addresses at which a machine that connects for a sandbox would reach itself, or several hosts at once. Nothing that a sandbox sends
 * leads there, so no policy is asked.
 */
export const NEVER_DIALLED_CIDRS: readonly Cidr[] = [...LOOPBACK_CIDRS, ...['0.0.0.0/8', '::'].map(cidr), ...MULTICAST]

/**
 * Special-purpose IPv4 blocks that belong to no group: "this network", protocol assignments, documentation, benchmarks,
 * and reserved addresses.
 */
// prettier-ignore
const RESERVED_4 = [
  '0.0.0.0/8', '192.0.0.0/24', '192.0.2.0/24', '192.88.99.0/24', '198.18.0.0/15', '198.51.100.0/24', '203.0.113.0/24', '240.0.0.0/4',
].map(cidr)

/** The part of IPv6 for global use. `RESERVED_6` lists the special blocks in it. */
const GLOBAL_6 = cidr('2000::/3')
/** Teredo and protocol assignments, documentation, and 6to4. Addresses of 6to4 contain IPv4 addresses of any kind. */
const RESERVED_6 = ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20'].map(cidr)

/** Every special-purpose address. The group `public` contains all other addresses. */
// prettier-ignore
export const SPECIAL_CIDRS: readonly Cidr[] = [
  ...LOOPBACK_CIDRS, ...PRIVATE, ...LINK_LOCAL, ...METADATA_CIDRS, ...MULTICAST, ...RESERVED_4, ...RESERVED_6,
]

/** The blocks with all public addresses. They also contain `SPECIAL_CIDRS`. */
export const PUBLIC_CIDRS: readonly Cidr[] = [cidr('0.0.0.0/0'), GLOBAL_6]

/** A group whose addresses are the same for every sandbox. */
export type NamedGroup = Exclude<DestinationGroup, 'host'>

/** The addresses of a group, for a sandbox whose gateway is `gateway`. */
export function groupAddresses(group: DestinationGroup, gateway: Cidr): AddressSet {
  if (group === 'host') return { within: [gateway], except: [] }
  const { within, except } = namedGroupAddresses(group)
  return { within, except: [...except, gateway] }
}

/** The addresses of a group, including those that are a sandbox's gateway. */
export function namedGroupAddresses(group: NamedGroup): AddressSet {
  if (group === 'metadata') return { within: METADATA_CIDRS, except: [] }
  return { within: GROUP_CIDRS[group], except: group === 'public' ? SPECIAL_CIDRS : METADATA_CIDRS }
}

const GROUP_CIDRS: Readonly<Record<Exclude<NamedGroup, 'metadata'>, readonly Cidr[]>> = {
  public: PUBLIC_CIDRS,
  loopback: LOOPBACK_CIDRS,
  private: PRIVATE,
  link_local: LINK_LOCAL,
  multicast: MULTICAST,
}
