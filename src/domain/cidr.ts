import { isIPv4, isIPv6 } from 'node:net'

/**
 * A block of IP addresses from `first` to `last`, both included. The host bits of `first` are 0. A single address is a
 * block of one address.
 */
export type Cidr = {
  readonly family: 4 | 6
  readonly first: bigint
  readonly last: bigint
  readonly prefix: number
}

/**
 * Parses `10.0.0.0/8`, `fd00::/8` or a single address. Returns null for any other text, including one with a zone id
 * (`%eth0`).
 */
export function parseCidr(text: string): Cidr | null {
  const parts = text.split('/')
  const address = parts[0] ?? ''
  if (parts.length > 2) return null
  const family = isIPv4(address) ? 4 : isIPv6(address) && !address.includes('%') ? 6 : null
  if (family === null) return null
  const width = family === 4 ? 32 : 128
  const prefixText = parts[1] ?? String(width)
  if (!/^\d{1,3}$/.test(prefixText) || Number(prefixText) > width) return null
  const prefix = Number(prefixText)
  const hostBits = BigInt(width - prefix)
  const first = (addressNumber(address, family) >> hostBits) << hostBits
  return { family, first, last: first + (1n << hostBits) - 1n, prefix }
}

/** Like `parseCidr`, for constants. Throws if the text is not an address block. */
export function cidr(text: string): Cidr {
  const parsed = parseCidr(text)
  if (parsed === null) throw new Error(`not an address block: ${text}`)
  return parsed
}

/** Whether `outer` contains every address of `inner`. */
export function contains(outer: Cidr, inner: Cidr): boolean {
  return outer.family === inner.family && outer.first <= inner.first && inner.last <= outer.last
}

/** Whether two blocks share an address. If they do, one contains the other. */
export function overlaps(one: Cidr, other: Cidr): boolean {
  return contains(one, other) || contains(other, one)
}

/** Removes the blocks that another block contains. Returns the rest in ascending order. */
export function dropContained(cidrs: readonly Cidr[]): readonly Cidr[] {
  const largestFirst = cidrs.toSorted((a, b) => a.prefix - b.prefix)
  const kept: Cidr[] = []
  for (const candidate of largestFirst) if (!kept.some((outer) => contains(outer, candidate))) kept.push(candidate)
  return kept.toSorted((a, b) => a.family - b.family || (a.first < b.first ? -1 : 1))
}

/** The addresses of `block` that are not in `hole`, as blocks. */
export function subtract(block: Cidr, hole: Cidr): readonly Cidr[] {
  if (!overlaps(block, hole)) return [block]
  if (contains(hole, block)) return []
  const prefix = block.prefix + 1
  const middle = block.first + (block.last - block.first + 1n) / 2n
  return [
    ...subtract({ ...block, prefix, last: middle - 1n }, hole),
    ...subtract({ ...block, prefix, first: middle }, hole),
  ]
}

/** The addresses of `blocks` that are in none of `holes`, as blocks. */
export function subtractAll(blocks: readonly Cidr[], holes: readonly Cidr[]): readonly Cidr[] {
  return holes.reduce((left, hole) => left.flatMap((block) => subtract(block, hole)), blocks)
}

/** An IPv4 block as text, such as `10.0.0.0/8`. */
export function formatIpv4Cidr(block: Cidr): string {
  return `${formatIpv4(block.first)}/${String(block.prefix)}`
}

/** A block of either family as text. The groups of an IPv6 address are not shortened. */
export function formatCidr(block: Cidr): string {
  if (block.family === 4) return formatIpv4Cidr(block)
  const groups = Array.from({ length: 8 }, (_, at) => ((block.first >> BigInt(16 * (7 - at))) & 0xffffn).toString(16))
  return `${groups.join(':')}/${String(block.prefix)}`
}

/** An IPv4 address as text, such as `10.0.0.1`. */
export function formatIpv4(address: bigint): string {
  return [24n, 16n, 8n, 0n].map((shift) => String((address >> shift) & 0xffn)).join('.')
}

function addressNumber(address: string, family: 4 | 6): bigint {
  if (family === 4) return joinNumbers(address.split('.').map(Number), 8n)
  const lastColon = address.lastIndexOf(':')
  const tail = address.slice(lastColon + 1)
  const plain = tail.includes('.') ? address.slice(0, lastColon + 1) + dottedAsHex(tail) : address
  const [head = '', rest] = plain.split('::')
  const before = hexGroups(head)
  const after = rest === undefined ? [] : hexGroups(rest)
  const zeros = Array.from({ length: 8 - before.length - after.length }, () => 0)
  return joinNumbers([...before, ...zeros, ...after], 16n)
}

function dottedAsHex(dotted: string): string {
  const value = addressNumber(dotted, 4)
  return `${(value >> 16n).toString(16)}:${(value & 0xffffn).toString(16)}`
}

function hexGroups(text: string): readonly number[] {
  return text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16))
}

function joinNumbers(numbers: readonly number[], bits: bigint): bigint {
  return numbers.reduce((value, part) => (value << bits) | BigInt(part), 0n)
}
