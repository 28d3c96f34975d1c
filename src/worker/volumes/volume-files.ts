import { rename, unlink } from 'node:fs/promises'
import type { Readable } from 'node:stream'
import { type VolumeFile, VolumeFileError, type VolumeFiles } from '../../contract/volumes/volume-protocol.ts'
import { type VolumePath, parseVolumePath } from '../../domain/volumes/volume-path.ts'
import type { Random } from '../../lib/random.ts'
import { type InodeId, type OpenEntry, type ResolvedPath, type VolumeRoot, resolveBeneath } from './resolve-beneath.ts'
import { NO_DISK_RESERVE, type DiskReserve } from '../disk-reserve.ts'
import type { AlignedBuffers } from './content-writer.ts'
import { stageCopy } from './copy-tree.ts'
import { descriptorPath, reopenForReading, syncFolder } from './descriptors.ts'
import { conflictError, invalidPathError, notFoundError, reserveReachedError, translateErrors } from './file-errors.ts'
import { describeFile, isVisible, listFolder, statThroughSymlink } from './visible-files.ts'
import { replaceAtomically } from './replace-atomically.ts'
import { type Content, FileContent, stageFile } from './file-streams.ts'
import { deleteStaleTemporaries, deleteTree, isTemporaryName } from './temporary-files.ts'
import type { Log } from '../../lib/log.ts'

type VolumeFilesOptions = VolumeRoot & {
  readonly random: Random
  /** The free space of the volumes' file system that files must leave. By default none. */
  readonly reserve?: Pick<DiskReserve, 'isShort'>
  /** For direct writes, where the file system supports them. By default files are written through the page cache. */
  readonly buffers?: AlignedBuffers
}

/**
 * Creates the file operations of the volume whose folder on this machine is `root`. User 0 of its sandboxes is user
 * `uidShift` on the host. The result keeps no state in memory, so several callers may create and use operations for the
 * same volume at the same time.
 *
 * Sandboxes may change the tree meanwhile, but no operation leaves `root` (`resolve-beneath.ts` ensures this). When a
 * `write` is refused, the content stream stays open.
 */
export function makeVolumeFiles(options: VolumeFilesOptions): VolumeFiles {
  const { random, reserve = NO_DISK_RESERVE, buffers = null, ...volume } = options
  const requireSpace = async (path: string): Promise<void> => {
    if (await reserve.isShort()) throw reserveReachedError(path)
  }
  return {
    list: (path) =>
      translateErrors(path, async () => {
        const names = parsePath(path)
        await using resolved = await resolveBeneath(volume, names, { path, lastSymlink: 'follow', ifMissing: 'refuse' })
        return await listFolder(volume, requireEntry(resolved, path), { names, path })
      }),
    stat: (path) => statOf(volume, path),
    exists: (path) => existsAt(volume, path),
    read: (path) => translateErrors(path, () => read(volume, path)),
    async write(path, content) {
      await requireSpace(path)
      return write(volume, path, { random, content, buffers, requireSpace: () => requireSpace(path) })
    },
    mkdir: (path) =>
      translateErrors(path, async () => {
        await requireSpace(path)
        await using resolved = await resolveBeneath(volume, parsePath(path), {
          path,
          lastSymlink: 'follow',
          ifMissing: 'all',
        })
        if (resolved.found?.stats.isDirectory() !== true) throw conflictError(path, 'exists and is not a folder')
      }),
    async copy(from, to) {
      await requireSpace(to)
      await copy(volume, { from, to, random })
    },
    rename: (from, to) => move(volume, from, to),
    remove: (path, { isRecursive }) => translateErrors(path, () => remove(volume, path, { isRecursive })),
  }
}

function parsePath(path: string): VolumePath {
  const parsed = parseVolumePath(path)
  if ('refused' in parsed) throw new VolumeFileError('invalid_volume_path', parsed.refused)
  const reserved = parsed.names.find(isTemporaryName)
  if (reserved !== undefined)
    throw invalidPathError(path, 'names with this prefix are reserved for files that are being written')
  return parsed.names
}

function requireEntry({ found }: ResolvedPath, path: string): OpenEntry {
  if (found === null) throw notFoundError(path)
  return found
}

async function statOf(volume: VolumeRoot, path: string): Promise<VolumeFile> {
  const names = parsePath(path)
  const stats = await translateErrors(path, async () => {
    await using resolved = await resolveBeneath(volume, names, { path, lastSymlink: 'keep', ifMissing: 'refuse' })
    const found = requireEntry(resolved, path)
    return found.stats.isSymbolicLink() ? await statThroughSymlink(volume, names) : found.stats
  })
  if (stats === null || !isVisible(stats)) throw notFoundError(path)
  return describeFile(`/${names.join('/')}`, stats, volume.uidShift)
}

async function existsAt(volume: VolumeRoot, path: string): Promise<boolean> {
  try {
    await statOf(volume, path)
    return true
  } catch (error) {
    if (error instanceof VolumeFileError && error.code === 'volume_file_not_found') return false
    throw error
  }
}

async function read(volume: VolumeRoot, path: string): Promise<{ sizeBytes: number; content: Readable }> {
  await using resolved = await resolveBeneath(volume, parsePath(path), {
    path,
    lastSymlink: 'follow',
    ifMissing: 'refuse',
  })
  const { handle, stats } = requireEntry(resolved, path)
  if (stats.isDirectory()) throw conflictError(path, 'is a folder')
  if (!stats.isFile()) throw notFoundError(path)
  const file = await reopenForReading(handle)
  const sizeBytes = (await file.stat()).size
  return { sizeBytes, content: new FileContent(file, sizeBytes) }
}

async function write(
  volume: VolumeRoot,
  path: string,
  { random, ...content }: Omit<Content, 'path'> & { readonly random: Random },
): Promise<{ sizeBytes: number }> {
  let sizeBytes = 0
  await replaceAtomically(volume, {
    names: parsePath(path),
    path,
    random,
    async stage(folder, name) {
      const file = await stageFile(folder, name, { path, ...content, uidShift: volume.uidShift })
      sizeBytes = file.sizeBytes
      return file
    },
  })
  return { sizeBytes }
}

async function copy(
  volume: VolumeRoot,
  { from, to, random }: { readonly from: string; readonly to: string; readonly random: Random },
): Promise<void> {
  const names = parsePath(to)
  await using resolved = await translateErrors(from, () =>
    resolveBeneath(volume, parsePath(from), { path: from, lastSymlink: 'follow', ifMissing: 'refuse' }),
  )
  const source = requireEntry(resolved, from)
  if (!isVisible(source.stats)) throw notFoundError(from)
  await replaceAtomically(volume, {
    names,
    path: to,
    random,
    stage: (folder, name) => translateErrors(from, () => stageCopy(folder, name, { ...source, path: from })),
    check(target) {
      refuseOwnDescendant(source, target, { from, to })
      if (source.stats.isDirectory() && target.found !== null) throw conflictError(to, 'exists and is not a folder')
    },
  })
}

async function move(volume: VolumeRoot, from: string, to: string): Promise<void> {
  const [fromNames, toNames] = [parsePath(from), parsePath(to)]
  await using resolved = await translateErrors(from, () =>
    resolveBeneath(volume, fromNames, { path: from, lastSymlink: 'keep', ifMissing: 'refuse' }),
  )
  const { name } = resolved
  if (name === null) throw invalidPathError(from, 'the root of a volume cannot be moved')
  await translateErrors(to, async () => {
    await using destination = await resolveBeneath(volume, toNames, {
      path: to,
      lastSymlink: 'keep',
      ifMissing: 'report',
    })
    if (toNames.length === 0) throw conflictError(to, 'is the root of the volume')
    refuseOwnDescendant(requireEntry(resolved, from), destination, { from, to })
    await using target = await resolveBeneath(volume, toNames, { path: to, lastSymlink: 'keep', ifMissing: 'parents' })
    await rename(descriptorPath(resolved.folder, name), descriptorPath(target.folder, target.name ?? '.'))
    await syncFolder(target.folder)
  })
}

/** Refuses to copy or move a folder into itself. */
function refuseOwnDescendant(
  source: OpenEntry,
  target: ResolvedPath,
  { from, to }: { readonly from: string; readonly to: string },
): void {
  const isSource = ({ dev, ino }: InodeId): boolean => dev === source.stats.dev && ino === source.stats.ino
  if (target.trail.some(isSource)) throw conflictError(to, `lies within '${from}'`)
}

async function remove(
  volume: VolumeRoot,
  path: string,
  { isRecursive }: { readonly isRecursive: boolean },
): Promise<void> {
  await using resolved = await resolveBeneath(volume, parsePath(path), {
    path,
    lastSymlink: 'keep',
    ifMissing: 'refuse',
  })
  const { folder, name } = resolved
  if (name === null) throw invalidPathError(path, 'the root of a volume cannot be removed')
  if (!requireEntry(resolved, path).stats.isDirectory()) return await unlink(descriptorPath(folder, name))
  if (!isRecursive) throw conflictError(path, 'is a folder: request a recursive removal to delete it with its contents')
  if (!(await deleteTree(folder, name)))
    throw conflictError(path, 'could not be removed completely: part of it is in use')
}

/**
 * The time since the last write after which an unfinished file counts as abandoned. It is far longer than the minute
 * after which a paused upload is ended.
 */
const STALE_AFTER_MS = 3_600_000

/**
 * Returns a function that opens the files of a volume by its folder. On the first use of a folder, it also deletes the
 * unfinished files of killed workers there, in the background.
 */
export function makeVolumeFilesOpener(
  options: Omit<VolumeFilesOptions, 'root'> & { readonly log: Log },
): (root: string) => VolumeFiles {
  const { log, ...rest } = options
  const swept = new Set<string>()
  return (root) => {
    if (!swept.has(root)) {
      swept.add(root)
      deleteStaleTemporaries(root, STALE_AFTER_MS).catch((error: unknown) => {
        log.warn({ error }, 'unfinished files in a volume could not be deleted')
      })
    }
    return makeVolumeFiles({ root, ...rest })
  }
}
