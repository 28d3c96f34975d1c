/**
 * Stores volumes as btrfs subvolumes. The quota group of a subvolume enforces the volume's cap, and its parent group
 * the organization's cap. Every change first reads the state from the file system, because a crash may have interrupted
 * the previous change.
 */
import { chmod, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrorCode } from '../../lib/error-code.ts'
import type { StorageReport, DesiredVolume } from '../../contract/workers/worker-protocol.ts'
import { makeKeyedMutex } from '../../lib/turns/keyed-mutex.ts'
import { makeBtrfs, type Btrfs } from './btrfs-commands.ts'
import {
  destroyOrphanGroups,
  ensureLimit,
  ensureMember,
  idOf,
  ownGroup,
  readState,
  totalGroup,
  type BtrfsState,
} from './btrfs-groups.ts'
import { ALL_VOLUMES_GROUP } from './pool-growth.ts'
import { makeChangeGate } from './change-gate.ts'
import { makeFolderLimits } from './folder-limits.ts'
import { idsWithin } from './subvolume-tree.ts'
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

/** Creates the storage for volumes on a mounted btrfs. */
export function makeBtrfsStorage({ root, uidShift, report, promisedBytes, close }: BtrfsStorageOptions): VolumeStorage {
  const btrfs = makeBtrfs(root)
  const mutex = makeKeyedMutex()

  return {
    report,
    root,
    folderLimits: makeFolderLimits({ btrfs, mutex, folderMutex: makeKeyedMutex(), gate: makeChangeGate(), uidShift }),
    hasDirectWrites: true,
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
        await deleteVolume(btrfs, subpath)
        await destroyOrphanGroups(btrfs)
      }),
    async measure() {
      await destroyOrphanGroups(btrfs)
      const { ids, groups } = await readState(btrfs, { isSynced: true })
      return [...ids].flatMap(([path, id]) => {
        const volume = parseVolumeSubpath(path)
        const used_bytes = (groups.get(totalGroup(id)) ?? groups.get(ownGroup(id)))?.usedBytes ?? 0
        return volume === null ? [] : [{ ...volume, used_bytes }]
      })
    },
    close,
  }
}

/**
 * Creates the subvolumes of the organization and the volume, and the organization's quota group, where they are
 * missing. Returns the file system's state afterwards.
 */
async function ensureSubvolumes(btrfs: Btrfs, volume: VolumeKey): Promise<BtrfsState> {
  const subpath = volumeSubpath(volume)
  const orgFolder = join(btrfs.root, volume.org_id)
  let state = await readState(btrfs)
  if (!state.ids.has(volume.org_id)) {
    await btrfs.createSubvolume(orgFolder, [])
    state = await readState(btrfs)
  }
  await chmod(orgFolder, 0o700) // sandboxes reach their volumes by bind mounts, and local users must not
  const group = totalGroup(idOf(state, volume.org_id))
  if (!state.groups.has(group)) await btrfs.createGroup(group)
  await ensureMember(btrfs, state, group, ALL_VOLUMES_GROUP)
  if (!state.ids.has(subpath)) await btrfs.createSubvolume(join(btrfs.root, subpath), [group])
  else if (state.groups.has(group)) return state
  return readState(btrfs)
}

/** Sets the caps that differ from the desired ones. */
async function setCaps(btrfs: Btrfs, volume: DesiredVolume, state: BtrfsState): Promise<void> {
  const id = idOf(state, volumeSubpath(volume))
  const orgGroup = totalGroup(idOf(state, volume.org_id))
  await ensureMember(btrfs, state, ownGroup(id), orgGroup)
  await ensureLimit(btrfs, state, ownGroup(id), volume.capacity_bytes)
  if (state.groups.has(totalGroup(id))) await ensureLimit(btrfs, state, totalGroup(id), volume.capacity_bytes)
  await ensureLimit(btrfs, state, orgGroup, volume.org_capacity_bytes)
}

async function deleteVolume(btrfs: Btrfs, subpath: string): Promise<void> {
  const { ids, subvolumes, groups } = await readState(btrfs)
  const id = ids.get(subpath)
  if (id === undefined) throw new Error(`${subpath} is not a subvolume`)
  const within = idsWithin(subvolumes, id)
  if (within.length > 0) {
    // To delete a subvolume takes a little space in the one around it, which a full volume lacks.
    await btrfs.setLimit(ownGroup(id), null)
    for (const group of groups.get(ownGroup(id))?.parents ?? []) await btrfs.removeFromGroup(ownGroup(id), group)
  }
  for (const one of [...within, id]) await btrfs.deleteSubvolume(one)
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
