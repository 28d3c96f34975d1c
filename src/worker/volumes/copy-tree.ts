import { constants, type BigIntStats } from 'node:fs'
import { copyFile, lchown, mkdir, readlink, symlink, type FileHandle } from 'node:fs/promises'
import type { Found } from './beneath.ts'
import { createFile, holdName, namesIn, openHeld, pathOf } from './descriptors.ts'
import { conflict, isFull, isRefusal } from './file-errors.ts'
import { give, giveIfOurs, type Ownership } from './owners.ts'
import type { Made } from './put-in-place.ts'
import { isTemporaryName } from './temporaries.ts'

/** The deepest tree that is copied: each level holds two descriptors and an open listing. */
const DEPTH_LIMIT = 256
const BLOCK_BYTES = 1024 * 1024
const PERMISSION_BITS = 0o7777n

/**
 * Copies a file or a folder that is held to a name that is not there, with owners, permissions and symlinks (as they
 * are), going by descriptors only. FIFOs, sockets and devices are left out; a hard link becomes a file. Where the file
 * system can, both share their blocks; else holes stay holes. A folder is closed to sandboxes until `finish`.
 */
export async function makeCopy(folder: FileHandle, name: string, source: Found & { path: string }): Promise<Made> {
  const copy = { path: source.path, canClone: true }
  const made = source.stats.isDirectory()
    ? await copyFolder(copy, source, { folder, name, depth: 1 })
    : await copyContent(copy, source, { folder, name, depth: 1 })
  return {
    finish: () => giveFrom(source.stats, made),
    [Symbol.asyncDispose]: () => made.close(),
  }
}

type Copy = { readonly path: string; canClone: boolean }
type Target = { readonly folder: FileHandle; readonly name: string | Buffer; readonly depth: number }

/** Resolves with the copy, held and still of this process's user. */
async function copyFolder(copy: Copy, source: Found, { folder, name, depth }: Target): Promise<FileHandle> {
  if (depth > DEPTH_LIMIT) throw conflict(copy.path, `holds folders more than ${String(DEPTH_LIMIT)} deep`)
  await mkdir(pathOf(folder, name), 0o700)
  const made = await holdName(folder, name)
  try {
    for await (const entryName of namesIn(source.handle)) {
      if (!isTemporaryName(entryName.toString('latin1')))
        await copyEntry(copy, source.handle, { folder: made, name: entryName, depth: depth + 1 })
    }
    return made
  } catch (error) {
    await made.close()
    throw error
  }
}

async function copyEntry(copy: Copy, from: FileHandle, target: Target): Promise<void> {
  await using handle = await holdOrGone(from, target.name)
  if (handle === null) return
  const stats = await handle.stat({ bigint: true })
  if (stats.isSymbolicLink()) return await copyLink(from, target, stats)
  if (!stats.isDirectory() && !stats.isFile()) return
  const copyOne = stats.isDirectory() ? copyFolder : copyContent
  await using made = await copyOne(copy, { handle, stats }, target)
  await giveFrom(stats, made)
}

async function holdOrGone(folder: FileHandle, name: string | Buffer): Promise<FileHandle | null> {
  try {
    return await holdName(folder, name)
  } catch (error) {
    if (isRefusal(error, 'ENOENT')) return null
    throw error
  }
}

async function copyLink(from: FileHandle, { folder, name }: Target, stats: BigIntStats): Promise<void> {
  const leadsTo = await linkOrGone(from, name)
  if (leadsTo === null) return
  await symlink(leadsTo, pathOf(folder, name))
  await lchown(pathOf(folder, name), Number(stats.uid), Number(stats.gid))
}

async function linkOrGone(folder: FileHandle, name: string | Buffer): Promise<Buffer | null> {
  try {
    return await readlink(pathOf(folder, name), { encoding: 'buffer' })
  } catch (error) {
    if (isRefusal(error, 'ENOENT', 'EINVAL')) return null
    throw error
  }
}

async function copyContent(copy: Copy, source: Found, { folder, name }: Target): Promise<FileHandle> {
  const made = await createFile(folder, name)
  try {
    // The owner first: cloning gives the source's permissions at once, set-user-id among them.
    await give(made, { ...ownershipOf(source.stats), mode: 0o600 })
    if (!(await tryClone(copy, source.handle, made))) await copyBlocks(source, made)
    return made
  } catch (error) {
    await made.close()
    throw error
  }
}

async function tryClone(copy: Copy, source: FileHandle, made: FileHandle): Promise<boolean> {
  if (!copy.canClone) return false
  try {
    await copyFile(pathOf(source), pathOf(made), constants.COPYFILE_FICLONE_FORCE)
    return true
  } catch (error) {
    if (isFull(error)) throw error
    copy.canClone = false
    return false
  }
}

/** In blocks and not by one call of the system, which would keep one of the process's four threads for its whole time. */
async function copyBlocks({ handle, stats }: Found, made: FileHandle): Promise<void> {
  await using source = await openHeld(handle)
  const sizeBytes = Number(stats.size) // one that grows as fast as it is copied would have no end
  const block = Buffer.allocUnsafeSlow(BLOCK_BYTES)
  const zeros = Buffer.alloc(BLOCK_BYTES)
  let at = 0
  while (at < sizeBytes) {
    const { bytesRead } = await source.read(block, 0, Math.min(BLOCK_BYTES, sizeBytes - at), at)
    if (bytesRead === 0) break
    if (block.compare(zeros, 0, bytesRead, 0, bytesRead) !== 0) await writeAll(made, block.subarray(0, bytesRead), at)
    at += bytesRead
  }
  await made.truncate(at)
}

async function writeAll(made: FileHandle, bytes: Buffer, from: number): Promise<void> {
  for (let done = 0; done < bytes.length;) {
    const { bytesWritten } = await made.write(bytes, done, bytes.length - done, from + done)
    done += bytesWritten
  }
}

/** A file was made by its descriptor; a folder by its name, which only the top one's neighbours can reach. */
async function giveFrom(stats: BigIntStats, made: FileHandle): Promise<void> {
  await (stats.isDirectory() ? giveIfOurs : give)(made, ownershipOf(stats))
}

function ownershipOf(stats: BigIntStats): Ownership {
  return { uid: Number(stats.uid), gid: Number(stats.gid), mode: Number(stats.mode & PERMISSION_BITS) }
}
