import { SANDBOX_IDS } from '../../../../domain/workers/id-range.ts'

/**
 * The text of `/proc/<pid>/uid_map` and `gid_map` (user_namespaces(7)): each line has the first id inside, the first id
 * outside, and a count.
 */
export type IdMap = string

/** The number of ids of the host: all 32-bit numbers but the last, which means no id. */
const HOST_IDS = 2 ** 32 - 1

/** Returns the map of a sandbox's user namespace: its ids from 0 on are the host's ids from `first` on. */
export function namespaceIdMap(first: number): IdMap {
  return mapText([[0, first, SANDBOX_IDS]])
}

/**
 * Returns the map of an idmapped mount. It shows the sandbox's ids from `stored` on, which files have on disk, as the ids from
 * `shown` on. The two ranges change places, and all other ids stay the same. So every file has a valid owner, and the host's
 * root may create files through the mount. Both ranges have `SANDBOX_IDS` ids and must not overlap.
 */
export function mountIdMap(stored: number, shown: number): IdMap {
  const [low, high] = stored < shown ? [stored, shown] : [shown, stored]
  const afterLow = low + SANDBOX_IDS
  const afterHigh = high + SANDBOX_IDS
  return mapText([
    [0, 0, low],
    [low, high, SANDBOX_IDS],
    [afterLow, afterLow, high - afterLow],
    [high, low, SANDBOX_IDS],
    [afterHigh, afterHigh, HOST_IDS - afterHigh],
  ])
}

function mapText(extents: readonly (readonly [number, number, number])[]): IdMap {
  return extents
    .filter(([, , count]) => count > 0)
    .map((extent) => `${extent.join(' ')}\n`)
    .join('')
}
