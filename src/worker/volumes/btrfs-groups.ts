/**
 * The quota groups of volumes. A subvolume has its own group, `0/<id>`. The group `1/<id>` of an organization's subvolume counts
 * all volumes of the organization. A volume that has folders with limits also has a group `1/<id>`: it counts the volume with
 * these folders, which are subvolumes in it.
 */
import type { Btrfs, QuotaGroup, Subvolume } from './btrfs-commands.ts'
import { idsByPath } from './subvolume-tree.ts'

export type BtrfsState = {
  readonly subvolumes: readonly Subvolume[]
  /** The ids of organizations and volumes by path. */
  readonly ids: ReadonlyMap<string, number>
  readonly groups: ReadonlyMap<string, QuotaGroup>
}

/**
 * The lowest possible id of a subvolume (BTRFS_FIRST_FREE_OBJECTID). Quota groups with lower ids belong to the file
 * system itself.
 */
const FIRST_SUBVOLUME_ID = 256

export function ownGroup(subvolume: number): string {
  return `0/${String(subvolume)}`
}

/** Returns the group that counts all of an organization, or a volume with its folders that have limits. */
export function totalGroup(subvolume: number): string {
  return `1/${String(subvolume)}`
}

export async function readState(btrfs: Btrfs, options = { isSynced: false }): Promise<BtrfsState> {
  const [subvolumes, groups] = await Promise.all([btrfs.subvolumes(), btrfs.groups(options)])
  return { subvolumes, ids: idsByPath(subvolumes), groups }
}

export function idOf({ ids }: BtrfsState, path: string): number {
  const id = ids.get(path)
  if (id === undefined) throw new Error(`${path} is not a subvolume`)
  return id
}

/** Makes a group a member of another one, unless it is. */
export async function ensureMember(btrfs: Btrfs, { groups }: BtrfsState, member: string, group: string): Promise<void> {
  if (groups.get(member)?.parents.includes(group) !== true) await btrfs.assignGroup(member, group)
}

/** Sets the limit of a group, unless it is in force. */
export async function ensureLimit(
  btrfs: Btrfs,
  { groups }: BtrfsState,
  group: string,
  bytes: number | null,
): Promise<void> {
  if ((groups.get(group)?.limitBytes ?? null) !== bytes) await btrfs.setLimit(group, bytes)
}

/**
 * Destroys the groups of deleted subvolumes. Kernels before 6.12 keep these groups, and their number would grow
 * forever. A deleted subvolume counts for its organization until the kernel has cleaned it up.
 */
export async function destroyOrphanGroups(btrfs: Btrfs): Promise<void> {
  // Groups are read first, so that the list of subvolumes includes subvolumes created meanwhile.
  const groups = await btrfs.groups({ isSynced: false })
  const existing = new Set((await btrfs.subvolumes()).map(({ id }) => id))
  for (const group of groups.keys()) {
    const [level = 0, id = 0] = group.split('/').map(Number)
    if (level > 1 || id < FIRST_SUBVOLUME_ID || existing.has(id)) continue
    await btrfs.destroyGroup(group) // if a group can't be destroyed yet, the next measurement destroys it
  }
}
