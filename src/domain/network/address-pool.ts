import { parseCidr, type Cidr } from '../cidr.ts'

/** The smallest block has 16 addresses, which is space for three networks. */
const SMALLEST_PREFIX = 28

/** What `parseAddressPool` accepts. */
export const ADDRESS_POOL_RULE = `an IPv4 block of /${String(SMALLEST_PREFIX)} or larger, such as 10.209.0.0/16`

/** Parses the block from which a worker takes the addresses of sandboxes. Returns null for any other text. */
export function parseAddressPool(text: string): Cidr | null {
  const block = parseCidr(text)
  return block?.family === 4 && block.prefix <= SMALLEST_PREFIX ? block : null
}
