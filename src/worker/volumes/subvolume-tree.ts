import type { Subvolume } from './btrfs-commands.ts'

/** The id of the subvolume that every btrfs file system begins with. */
const TOP_ID = 5
/** The inode of the root folder of every subvolume. Other files have higher numbers. */
export const ROOT_INODE = 256

/**
 * Returns the ids of the subvolumes of organizations and volumes by their paths: `<org_id>` and `<org_id>/<volume_id>`. Sandboxes
 * choose no part of these paths.
 */
export function idsByPath(subvolumes: readonly Subvolume[]): ReadonlyMap<string, number> {
  const childrenOf = (parent: number): readonly (readonly [string, number])[] =>
    subvolumes.flatMap(({ id, place }) =>
      place?.parentId === parent && place.folder === ROOT_INODE ? [[place.name, id] as const] : [],
    )
  const orgs = childrenOf(TOP_ID)
  return new Map([
    ...orgs,
    ...orgs.flatMap(([org, orgId]) => childrenOf(orgId).map(([name, id]) => [`${org}/${name}`, id] as const)),
  ])
}

/** Returns the ids of the subvolumes in a subvolume, the innermost first. */
export function idsWithin(subvolumes: readonly Subvolume[], parent: number): readonly number[] {
  const children = subvolumes.filter(({ place }) => place?.parentId === parent)
  return children.flatMap(({ id }) => [...idsWithin(subvolumes, id), id])
}

/** Returns the ids of the subvolumes in folders of the file system's own root, which are neither organizations nor volumes. */
export function idsInFolders(subvolumes: readonly Subvolume[]): readonly number[] {
  return subvolumes.flatMap(({ id, place }) => (place?.parentId === TOP_ID && place.folder !== ROOT_INODE ? [id] : []))
}
