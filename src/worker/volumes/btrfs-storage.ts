/**
 * Stores volumes as btrfs subvolumes. The quota group of a subvolume enforces the volume's cap, and its parent group
 * the organization's cap. Every change first reads the state from the file system, because a crash may have interrupted
 * the previous change.
 */
import { chmod, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrorCode } from '../../lib/error-code.ts'
import type { StorageReport, DesiredVolume } from '../../contract/workers/worker-protocol.ts'
import { makeKeyedMutex } from '../../lib/keyed-mutex.ts'
import { makeBtrfs, type Btrfs, type QuotaGroup } from './btrfs-commands.ts'
import { ALL_VOLUMES_GROUP } from './pool-growth.ts'
import { findMountsOfFolder } from '../processes/mountinfo.ts'
import {
  type VolumeKey,
  type VolumeStorage,
  assignToSandboxRoot,
  parseVolumeSubpath,
  volumeSubpath,
} from './volume-storage.ts'

type BtrfsStorageOptions = {
  /** The mount point of the file system. Quotas must be enabled. */
  readonly root: string
  /** The id of the host user that is user 0 in the sandboxes. */
  readonly uidShift: number
  readonly report: StorageReport
  readonly promisedBytes: () => number
  /** Releases the file system. */
  readonly close: () => Promise<void>
}

/**
 * The lowest possible id of a subvolume (BTRFS_FIRST_FREE_OBJECTID). Quota groups with lower ids belong to the file
 * system itself.
 */
const FIRST_SUBVOLUME_ID = 256

/** Creates the storage for volumes on a mounted btrfs. */
export function makeBtrfsStorage({ root, uidShift, report, promisedBytes, close }: BtrfsStorageOptions): VolumeStorage {
  const btrfs = makeBtrfs(root)
  const mutex = makeKeyedMutex()

  return {
    report,
    root,
    promisedBytes,
    open: (volume) =>
      mutex.run(volume.org_id, async () => {
        const path = join(root, volumeSubpath(volume))
        await setCaps(btrfs, volume, await ensureSubvolumes(btrfs, volume)) // before anyone can write
        await assignToSandboxRoot(path, uidShift)
        return path
      }),
    applyCaps: (volume) =>
      mutex.run(volume.org_id, async () => {
        if (await pathExists(join(root, volumeSubpath(volume))))
          await setCaps(btrfs, volume, await ensureSubvolumes(btrfs, volume))
      }),
    remove: (volume) =>
      mutex.run(volume.org_id, async () => {
        const subpath = volumeSubpath(volume)
        if (!(await pathExists(join(root, subpath)))) return
        const mounted = await findMountsOfFolder(join(root, subpath))
        if (mounted.length > 0) throw new Error(`volume ${subpath} is mounted: ${mounted.slice(0, 3).join(', ')}`)
        const within = [...(await btrfs.subvolumes()).keys()].filter((path) => path.startsWith(`${subpath}/`))
        for (const path of within.toSorted((a, b) => b.length - a.length)) await btrfs.deleteSubvolume(path)
        await btrfs.deleteSubvolume(subpath)
        await destroyOrphanGroups(btrfs)
      }),
    async measure() {
      await destroyOrphanGroups(btrfs)
      const [subvolumes, groups] = [await btrfs.subvolumes(), await btrfs.groups({ isSynced: true })]
      return [...subvolumes].flatMap(([path, id]) => {
        const volume = parseVolumeSubpath(path)
        return volume === null ? [] : [{ ...volume, used_bytes: groups.get(volumeGroup(id))?.usedBytes ?? 0 }]
      })
    },
    close,
  }
}

function volumeGroup(subvolume: number): string {
  return `0/${String(subvolume)}`
}

function orgGroup(subvolume: number): string {
  return `1/${String(subvolume)}`
}

type BtrfsState = { readonly subvolumes: ReadonlyMap<string, number>; readonly groups: ReadonlyMap<string, QuotaGroup> }

async function readState(btrfs: Btrfs): Promise<BtrfsState> {
  const [subvolumes, groups] = await Promise.all([btrfs.subvolumes(), btrfs.groups({ isSynced: false })])
  return { subvolumes, groups }
}

/**
 * Creates the subvolumes of the organization and the volume, and the organization's quota group, where they are
 * missing. Returns the file system's state afterwards.
 */
async function ensureSubvolumes(btrfs: Btrfs, volume: VolumeKey): Promise<BtrfsState> {
  const subpath = volumeSubpath(volume)
  let state = await readState(btrfs)
  if (!state.subvolumes.has(volume.org_id)) {
    await btrfs.createSubvolume(volume.org_id, null)
    state = await readState(btrfs)
  }
  await chmod(join(btrfs.root, volume.org_id), 0o700) // sandboxes reach their volumes by bind mounts, and local users must not
  const group = orgGroup(idOf(state, volume.org_id))
  if (!state.groups.has(group)) await btrfs.createGroup(group)
  if (state.groups.get(group)?.parents.includes(ALL_VOLUMES_GROUP) !== true)
    await btrfs.assignGroup(group, ALL_VOLUMES_GROUP)
  if (!state.subvolumes.has(subpath)) await btrfs.createSubvolume(subpath, group)
  else if (state.groups.has(group)) return state
  return readState(btrfs)
}

/** Sets the caps that differ from the desired ones. */
async function setCaps(btrfs: Btrfs, volume: DesiredVolume, state: BtrfsState): Promise<void> {
  const own = volumeGroup(idOf(state, volumeSubpath(volume)))
  const parent = orgGroup(idOf(state, volume.org_id))
  const limit = async (group: string, bytes: number | null): Promise<void> => {
    if ((state.groups.get(group)?.limitBytes ?? null) !== bytes) await btrfs.setLimit(group, bytes)
  }
  if (state.groups.get(own)?.parents.includes(parent) !== true) await btrfs.assignGroup(own, parent)
  await limit(own, volume.capacity_bytes)
  await limit(parent, volume.org_capacity_bytes)
}

function idOf({ subvolumes }: BtrfsState, path: string): number {
  const id = subvolumes.get(path)
  if (id === undefined) throw new Error(`${path} is not a subvolume`)
  return id
}

/**
 * Destroys the groups of deleted subvolumes. Kernels before 6.12 keep these groups, and their number would grow
 * forever. A deleted subvolume counts for its organization until the kernel has cleaned it up.
 */
async function destroyOrphanGroups(btrfs: Btrfs): Promise<void> {
  // Groups are read first, so that the list of subvolumes includes subvolumes created meanwhile.
  const groups = await btrfs.groups({ isSynced: false })
  const living = new Set([...(await btrfs.subvolumes()).values(), ...(await btrfs.deletedSubvolumeIds())])
  for (const group of groups.keys()) {
    const [level, id] = group.split('/').map(Number)
    if (level !== 0 || id === undefined || id < FIRST_SUBVOLUME_ID || living.has(id)) continue
    await btrfs.destroyGroup(group) // if a group can't be destroyed yet, the next measurement destroys it
  }
}

async function pathExists(path: string): Promise<boolean> {
  try {
    await stat(path)
    return true
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return false
    throw error
  }
}
