import { cidr, overlaps, parseCidr, type Cidr } from '../../domain/cidr.ts'
import { ADDRESS_POOL_RULE, parseAddressPool } from '../../domain/network/address-pool.ts'
import { localCommands } from '../../lib/run-command.ts'
import { ipJson } from './network-commands.ts'

/** The address pools to try, in order, when a route of this machine overlaps the configured address pool. */
const FALLBACK_ADDRESS_POOLS: readonly string[] = [
  ...Array.from({ length: 40 }, (_, index) => `10.${String(210 + index)}.0.0/16`),
  '172.30.0.0/16',
  '192.168.240.0/20',
  '100.126.0.0/16',
]

/**
 * Returns the first address pool that overlaps no route of this machine: the configured one, otherwise a fallback.
 * Throws when each of them overlaps a route.
 */
export async function chooseAddressPool(configured: string): Promise<Cidr> {
  const first = parseAddressPool(configured)
  if (first === null) throw new Error(`an address pool is ${ADDRESS_POOL_RULE}, not ${configured}`)
  const used = await routedBlocks()
  const free = [first, ...FALLBACK_ADDRESS_POOLS.map(cidr)].find((pool) => !used.some((block) => overlaps(block, pool)))
  if (free === undefined) throw new Error('every address pool overlaps a route of this machine: configure another')
  return free
}

/** A route of the host: its destination and its device. */
type HostRoute = { readonly block: Cidr | null; readonly device: string; readonly isUnicast: boolean }

/** Returns the host's IPv4 routes in all tables. `block` is null for a default route. */
export async function hostRoutes(): Promise<readonly HostRoute[]> {
  const routes = await ipJson(localCommands, ['-4', 'route', 'show', 'table', 'all'])
  if (!Array.isArray(routes)) throw new Error('the routes of this machine could not be read')
  return routes.flatMap((route: unknown) => {
    if (typeof route !== 'object' || route === null || !('dst' in route) || typeof route.dst !== 'string') return []
    const device = 'dev' in route && typeof route.dev === 'string' ? route.dev : ''
    const isUnicast = !('type' in route) || route.type === 'unicast'
    return [{ block: parseCidr(route.dst), device, isUnicast }]
  })
}

async function routedBlocks(): Promise<readonly Cidr[]> {
  return (await hostRoutes()).flatMap(({ block }) => (block === null || block.prefix === 0 ? [] : [block]))
}
