/**
 * Limits of folders within volumes. A folder with a limit is a subvolume of its own, whose quota group has the limit. It also
 * counts for its volume and organization.
 */
import { realpath, type FileHandle } from 'node:fs/promises'
import type { KeyedMutex } from '../../lib/turns/keyed-mutex.ts'
import { findMountsOfFolder } from '../processes/mountinfo.ts'
import { CommandError } from '../../lib/run-command.ts'
import type { ChangeGate } from './change-gate.ts'
import { replaceBySubvolume } from './replace-folder.ts'
import type { Btrfs } from './btrfs-commands.ts'
import { ensureLimit, ensureMember, idOf, ownGroup, readState, totalGroup, type BtrfsState } from './btrfs-groups.ts'
import { FOLDER_MODE, descriptorPath, openNoFollow, pathOfWorker, setOwnershipIfOurs } from './descriptors.ts'
import { conflictError, translateErrors } from './file-errors.ts'
import { resolveBeneath, type OpenEntry } from './resolve-beneath.ts'
import { ROOT_INODE } from './subvolume-tree.ts'
import { ensureQuotasConsistent } from './volume-pool.ts'
import { volumeSubpath, type FolderLimits, type VolumeKey } from './volume-storage.ts'

type FolderLimitsInput = {
  readonly btrfs: Btrfs
  /** Serializes the changes of an organization's volumes. */
  readonly mutex: KeyedMutex
  /** Serializes the use of the folders of a volume. */
  readonly folderMutex: KeyedMutex
  readonly gate: ChangeGate
  readonly uidShift: number
}

const NESTED = 'can have no quota: it is in a folder with a quota, or contains one'

/** Creates the limits of folders in volumes of a pool. */
export function makeFolderLimits({ btrfs, mutex, folderMutex, gate, uidShift }: FolderLimitsInput): FolderLimits {
  return {
    using: (volume, work) => gate.using(volumeSubpath(volume), work),
    exclusively: (volume, work) => folderMutex.run(volumeSubpath(volume), work),
    async prepare(volume, root, { names, path }) {
      await using resolved = await translateErrors(path, () =>
        resolveBeneath({ root, uidShift }, names, { path, lastSymlink: 'follow', ifMissing: 'parents' }),
      )
      const { folder, name, found } = resolved
      if (name === null) throw conflictError(path, 'can have no quota: only a folder within the volume can')
      if (found !== null && isSubvolume(found)) return
      if ((await btrfs.subvolumeIdOf(pathOfWorker(folder))) !== (await btrfs.subvolumeIdOf(root)))
        throw conflictError(path, NESTED)
      if (found === null)
        return await mutex.run(volume.org_id, () => createIn(btrfs, volume, { folder, name, uidShift }))
      if (!found.stats.isDirectory())
        throw conflictError(path, 'can have no quota: it is a file, and only a folder can')
      const replaced = await gate.replacing(volumeSubpath(volume), async () => {
        const groups = await mutex.run(volume.org_id, () => ensureGroups(btrfs, volume))
        await translateSpace(path, replaceBySubvolume(btrfs, groups, { folder, name, found, path, root }))
        return true
      })
      if (replaced === null)
        throw conflictError(path, 'exists without a quota, and files of the volume are in use: try again')
    },
    async set(volume, held, { bytes, path }) {
      const stats = await held.stat({ bigint: true })
      const isLimitable = isSubvolume({ handle: held, stats })
      if (!isLimitable && bytes === null) return
      if (!isLimitable) throw conflictError(path, 'can have no quota: it is not a folder of its own')
      await mutex.run(volume.org_id, () => setLimit(btrfs, volume, { held, bytes, path }))
    },
  }
}

function isSubvolume({ stats }: OpenEntry): boolean {
  return stats.isDirectory() && stats.ino === BigInt(ROOT_INODE)
}

type NewFolder = { readonly folder: FileHandle; readonly name: string; readonly uidShift: number }

async function createIn(btrfs: Btrfs, volume: VolumeKey, { folder, name, uidShift }: NewFolder): Promise<void> {
  await translateSpace(
    name,
    btrfs.createSubvolume(`${pathOfWorker(folder)}/${name}`, await ensureGroups(btrfs, volume)),
  )
  const made = await openNoFollow(folder, name)
  try {
    await setOwnershipIfOurs(made, { uid: uidShift, gid: uidShift, mode: FOLDER_MODE })
  } finally {
    await made.close()
  }
}

/** The error of a program that the kernel refused space, in the words of strerror(3). */
const NO_SPACE = /Disk quota exceeded|No space left on device/

async function translateSpace(path: string, work: Promise<void>): Promise<void> {
  try {
    await work
  } catch (error) {
    if (error instanceof CommandError && NO_SPACE.test(error.message))
      throw conflictError(path, 'can get no quota: the cap of the volume leaves no space for it')
    throw error
  }
}

/** Returns the groups of a folder with a limit. */
async function ensureGroups(btrfs: Btrfs, volume: VolumeKey): Promise<readonly string[]> {
  const state = await readState(btrfs)
  return [totalGroup(idOf(state, volume.org_id)), await ensureTotalGroup(btrfs, volume, state)]
}

/** Makes sure that a group counts the volume with all folders that have limits, and has the volume's cap. Returns the group. */
async function ensureTotalGroup(btrfs: Btrfs, volume: VolumeKey, state: BtrfsState): Promise<string> {
  const id = idOf(state, volumeSubpath(volume))
  const [own, total] = [ownGroup(id), totalGroup(id)]
  if (!state.groups.has(total)) await btrfs.createGroup(total)
  await ensureLimit(btrfs, state, total, state.groups.get(own)?.limitBytes ?? null)
  if (state.groups.get(own)?.parents.includes(total) !== true) {
    await btrfs.assignGroup(own, total)
    await ensureQuotasConsistent(btrfs.root) // the counts of a volume that shares blocks, as with a backup, become inconsistent
  }
  return total
}

type LimitedFolder = { readonly held: FileHandle; readonly bytes: number | null; readonly path: string }

async function setLimit(btrfs: Btrfs, volume: VolumeKey, { held, bytes, path }: LimitedFolder): Promise<void> {
  const state = await readState(btrfs)
  const id = await btrfs.subvolumeIdOf(pathOfWorker(held))
  const volumeId = idOf(state, volumeSubpath(volume))
  if (id === volumeId && bytes === null) return
  const isDirectlyIn = state.subvolumes.some((one) => one.id === id && one.place?.parentId === volumeId)
  const hasInner = state.subvolumes.some(({ place }) => place?.parentId === id)
  if (bytes !== null && (!isDirectlyIn || hasInner)) throw conflictError(path, NESTED)
  await ensureMember(btrfs, state, ownGroup(id), totalGroup(idOf(state, volume.org_id)))
  await ensureMember(btrfs, state, ownGroup(id), await ensureTotalGroup(btrfs, volume, state))
  const before = state.groups.get(ownGroup(id))?.limitBytes ?? null
  const isLifted = before !== null && (bytes === null || bytes > before)
  if (isLifted && (await isMounted(held))) return
  await ensureLimit(btrfs, state, ownGroup(id), bytes)
}

async function isMounted(held: FileHandle): Promise<boolean> {
  return (await findMountsOfFolder(await realpath(descriptorPath(held)))).length > 0
}
