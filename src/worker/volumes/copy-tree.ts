import { constants, type BigIntStats } from 'node:fs'
import { copyFile, lchown, mkdir, readlink, symlink, type FileHandle } from 'node:fs/promises'
import { hasErrorCode } from '../../lib/error-code.ts'
import type { OpenEntry } from './resolve-beneath.ts'
import {
  type Ownership,
  createExclusively,
  descriptorPath,
  listNames,
  openNoFollow,
  reopenForReading,
  setOwnership,
  setOwnershipIfOurs,
  writeAt,
} from './descriptors.ts'
import { conflictError, isOutOfSpace } from './file-errors.ts'
import type { StagedFile } from './replace-atomically.ts'
import { isTemporaryName } from './temporary-files.ts'

/** The maximum depth of a tree to copy. Each level keeps two descriptors and a listing open. */
const DEPTH_LIMIT = 256
const BLOCK_BYTES = 1024 * 1024
const PERMISSION_BITS = 0o7777n

/**
 * Copies an open file or folder to a new name, with owners, permissions and symlinks. Uses only descriptors, so
 * sandboxes can't redirect it. FIFOs, sockets and devices are omitted, and hard links become separate files. Source and
 * copy share their blocks if the file system supports that. Otherwise the data is copied, and holes in sparse files
 * stay holes. Sandboxes can't enter a copied folder before `finish`.
 */
export async function stageCopy(
  folder: FileHandle,
  name: string,
  source: OpenEntry & { path: string },
): Promise<StagedFile> {
  const copy = { path: source.path, canClone: true }
  const made = source.stats.isDirectory()
    ? await copyFolder(copy, source, { folder, name, depth: 1 })
    : await copyContent(copy, source, { folder, name, depth: 1 })
  return {
    finish: () => copyOwnership(source.stats, made),
    [Symbol.asyncDispose]: () => made.close(),
  }
}

type CopyState = { readonly path: string; canClone: boolean }
type Target = { readonly folder: FileHandle; readonly name: string | Buffer; readonly depth: number }

/** Resolves with the open copy, which still belongs to this process's user. */
async function copyFolder(copy: CopyState, source: OpenEntry, { folder, name, depth }: Target): Promise<FileHandle> {
  if (depth > DEPTH_LIMIT) throw conflictError(copy.path, `holds folders more than ${String(DEPTH_LIMIT)} deep`)
  await mkdir(descriptorPath(folder, name), 0o700)
  const made = await openNoFollow(folder, name)
  try {
    for await (const entryName of listNames(source.handle)) {
      if (!isTemporaryName(entryName.toString('latin1')))
        await copyEntry(copy, source.handle, { folder: made, name: entryName, depth: depth + 1 })
    }
    return made
  } catch (error) {
    await made.close()
    throw error
  }
}

async function copyEntry(copy: CopyState, from: FileHandle, target: Target): Promise<void> {
  await using handle = await openOrGone(from, target.name)
  if (handle === null) return
  const stats = await handle.stat({ bigint: true })
  if (stats.isSymbolicLink()) return await copyLink(from, target, stats)
  if (!stats.isDirectory() && !stats.isFile()) return
  const copyOne = stats.isDirectory() ? copyFolder : copyContent
  await using made = await copyOne(copy, { handle, stats }, target)
  await copyOwnership(stats, made)
}

async function openOrGone(folder: FileHandle, name: string | Buffer): Promise<FileHandle | null> {
  try {
    return await openNoFollow(folder, name)
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return null
    throw error
  }
}

async function copyLink(from: FileHandle, { folder, name }: Target, stats: BigIntStats): Promise<void> {
  const leadsTo = await linkOrGone(from, name)
  if (leadsTo === null) return
  await symlink(leadsTo, descriptorPath(folder, name))
  await lchown(descriptorPath(folder, name), Number(stats.uid), Number(stats.gid))
}

async function linkOrGone(folder: FileHandle, name: string | Buffer): Promise<Buffer | null> {
  try {
    return await readlink(descriptorPath(folder, name), { encoding: 'buffer' })
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT', 'EINVAL')) return null
    throw error
  }
}

async function copyContent(copy: CopyState, source: OpenEntry, { folder, name }: Target): Promise<FileHandle> {
  const made = await createExclusively(folder, name)
  try {
    // The owner is set first, because cloning applies the source's permissions at once, including set-user-id.
    await setOwnership(made, { ...ownershipOf(source.stats), mode: 0o600 })
    if (!(await tryClone(copy, source, made))) await copyBlocks(source, made)
    return made
  } catch (error) {
    await made.close()
    throw error
  }
}

/** Shares the blocks of the source, unless it is in another subvolume: btrfs would not check the limit of a folder. */
async function tryClone(copy: CopyState, source: OpenEntry, made: FileHandle): Promise<boolean> {
  if (!copy.canClone || (await made.stat({ bigint: true })).dev !== source.stats.dev) return false
  // `copyFile` would wait for a sandbox with a lease on the file (fcntl(2), 45 s), and occupy one of the process's four threads.
  // This open fails with EAGAIN instead. While it lasts, no sandbox gets a lease that another reader would have to break.
  await using readable = await reopenForReading(source.handle)
  try {
    await copyFile(descriptorPath(readable), descriptorPath(made), constants.COPYFILE_FICLONE_FORCE)
    return true
  } catch (error) {
    if (isOutOfSpace(error)) throw error
    copy.canClone = false
    return false
  }
}

/**
 * Copies block by block, because a single system call for the whole file would occupy one of the process's four
 * threads.
 */
async function copyBlocks({ handle, stats }: OpenEntry, made: FileHandle): Promise<void> {
  await using source = await reopenForReading(handle)
  const sizeBytes = Number(stats.size) // a fixed size, because copying a growing file might never end
  const block = Buffer.allocUnsafeSlow(BLOCK_BYTES)
  const zeros = Buffer.alloc(BLOCK_BYTES)
  let at = 0
  while (at < sizeBytes) {
    const { bytesRead } = await source.read(block, 0, Math.min(BLOCK_BYTES, sizeBytes - at), at)
    if (bytesRead === 0) break
    if (block.compare(zeros, 0, bytesRead, 0, bytesRead) !== 0) await writeAt(made, block.subarray(0, bytesRead), at)
    at += bytesRead
  }
  await made.truncate(at)
}

/**
 * Sets the owner and mode of the copy. For a folder, it first checks that this process created it: a sandbox could have
 * replaced the folder between mkdir and open.
 */
async function copyOwnership(stats: BigIntStats, made: FileHandle): Promise<void> {
  await (stats.isDirectory() ? setOwnershipIfOurs : setOwnership)(made, ownershipOf(stats))
}

function ownershipOf(stats: BigIntStats): Ownership {
  return { uid: Number(stats.uid), gid: Number(stats.gid), mode: Number(stats.mode & PERMISSION_BITS) }
}
