import { cidr, contains, formatIpv4, parseCidr, type Cidr } from '../cidr.ts'
import { describeSeen, type Refuse } from '../refusal.ts'

/** What a sandbox's network device shows. Null: as the worker chooses. */
export type NetworkInterface = {
  /** The sandbox's own address. */
  readonly ipv4_address: string | null
  /** The block that the address is from, as it was asked for. */
  readonly ipv4_pool: string | null
  /** Six octets. */
  readonly mac: readonly number[] | null
  readonly mtu: number | null
}

/** The `interface` of a request. */
export type InterfaceInput = {
  readonly ipv4_address?: string | null
  readonly ipv4_pool?: string | null
  readonly ipv6_address?: string | null
  readonly ipv6_pool?: string | null
  readonly mac?: readonly number[] | null
  readonly mtu?: number | null
}

/** The smallest and largest MTU of an IPv4 device (RFC 791; a length field of 16 bits). */
const MTU = { min: 68, max: 65_535 } as const
/** This network, loopback, multicast and reserved addresses, and the metadata addresses of clouds. */
const UNUSABLE: readonly Cidr[] = [
  '0.0.0.0/8',
  '127.0.0.0/8',
  '224.0.0.0/4',
  '240.0.0.0/4',
  '169.254.169.254',
  '100.100.100.200',
].map(cidr)

/** Checks the interface of a request. Null if it asks for nothing. */
export function normalizeInterface(input: InterfaceInput | null | undefined, refuse: Refuse): NetworkInterface | null {
  const { ipv4_address = null, ipv4_pool = null, mac = null, mtu = null } = input ?? {}
  const no = (key: keyof InterfaceInput, accepted: string): void => {
    refuse({
      code: 'invalid_sandbox_config',
      field: `network.interface.${key}`,
      seen: describeSeen(input?.[key]),
      accepted,
    })
  }
  for (const key of ['ipv6_address', 'ipv6_pool'] as const)
    if ((input?.[key] ?? null) !== null) no(key, 'null, because sandboxes have no IPv6')
  const pool = ipv4_pool === null ? null : parseCidr(ipv4_pool)
  if (ipv4_pool !== null && (pool?.family !== 4 || pool.prefix > 30))
    no('ipv4_pool', 'an IPv4 block of at least four addresses, such as 172.16.0.0/12')
  // the second address, as the genuine runtime chooses for its first sandbox; the first is the gateway's there
  const address = ipv4_address ?? (pool === null ? null : formatIpv4(pool.first + 2n))
  const block = address === null ? null : parseCidr(address)
  const isUnusable = block !== null && UNUSABLE.some((one) => contains(one, block))
  if (address !== null && (block?.family !== 4 || block.prefix !== 32 || address.includes('/') || isUnusable))
    no(ipv4_address === null ? 'ipv4_pool' : 'ipv4_address', 'an IPv4 address that a host can have, such as 172.16.0.2')
  if (block !== null && pool !== null && !contains(pool, block))
    no('ipv4_address', `an address in ${String(ipv4_pool)}`)
  if (mac !== null && !isUnicastMac(mac)) no('mac', 'six octets from 0 to 255 whose first is even, and not all 0')
  if (mtu !== null && (mtu < MTU.min || mtu > MTU.max)) no('mtu', `${String(MTU.min)} to ${String(MTU.max)}`)
  const asked = { ipv4_address: address, ipv4_pool, mac, mtu }
  return Object.values(asked).every((value) => value === null) ? null : asked
}

function isUnicastMac(mac: readonly number[]): boolean {
  const [first = 1] = mac
  const areOctets = mac.every((octet) => Number.isInteger(octet) && octet >= 0 && octet <= 255)
  return mac.length === 6 && areOctets && first % 2 === 0 && mac.some((octet) => octet !== 0)
}
