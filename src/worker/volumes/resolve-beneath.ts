import type { BigIntStats } from 'node:fs'
import { mkdir, readlink, type FileHandle } from 'node:fs/promises'
import type { VolumePath } from '../../domain/volumes/volume-path.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import { FOLDER_MODE, descriptorPath, openNoFollow, openRoot, setOwnershipIfOurs } from './descriptors.ts'
import { conflictError, invalidPathError, notFoundError } from './file-errors.ts'

/**
 * The root folder of a volume, in which `resolveBeneath` resolves paths. A sandbox may change the tree at any moment.
 * Each step therefore opens one name relative to the descriptor of its folder, without following symlinks. Targets of
 * symlinks are read and resolved in the same way. Only symlinks may contain `..`. At a `..`, resolving restarts at the
 * root, so a folder that was moved meanwhile can't lead out of the volume. At most three descriptors are open at a
 * time, at any depth.
 *
 * Like `RESOLVE_BENEATH` of openat2(2), it refuses absolute symlinks and `..` above the root. For paths in a sandbox's
 * root file system, use `resolveInRoot`, which resolves them as after chroot(2).
 */
export type VolumeRoot = { readonly root: string; readonly uidShift: number }

/** The result of resolving a path. Dispose of it to close its descriptors. */
export type ResolvedPath = AsyncDisposable & {
  /**
   * The folder of the last name. When parent folders are missing, the deepest existing folder of the path. For the path
   * of the root, the root itself.
   */
  readonly folder: FileHandle
  /** The last name in `folder`. Null for the root, and when parent folders are missing. */
  readonly name: string | null
  /** The existing file or folder at the path. Null when there is none. */
  readonly found: OpenEntry | null
  /** The folders from the root to `folder`. */
  readonly trail: readonly InodeId[]
}
export type OpenEntry = { readonly handle: FileHandle; readonly stats: BigIntStats }
export type InodeId = Pick<BigIntStats, 'dev' | 'ino'>

type ResolveBeneathOptions = {
  /** The path as the client wrote it, for errors. */
  readonly path: string
  /** Whether to follow a symlink at the last name, or to return the symlink itself. */
  readonly lastSymlink: 'follow' | 'keep'
  /**
   * The action for a missing name. `refuse` throws `volume_file_not_found`, and `report` returns `found: null`.
   * `parents` creates the missing parent folders, and `all` also creates a folder with the last name.
   */
  readonly ifMissing: 'refuse' | 'report' | 'parents' | 'all'
  /**
   * A budget that several calls share, which limits their total steps. Without it, each call has the default budget.
   */
  readonly budget?: StepBudget
}

/** The number of steps left. A limit is necessary, because symlinks can make a short path long. */
export type StepBudget = { steps: number }

/**
 * The default step budget. A path of 4,096 bytes without symlinks has at most 2,048 names. This many steps take about
 * half a second.
 */
const STEPS_LIMIT = 8_192
/** Linux's own limit on symlinks in one path (path_resolution(7)). */
const SYMLINKS_LIMIT = 40

/**
 * Resolves a path as described at `VolumeRoot`. Rejects with `VolumeFileError` or the kernel's error. The caller
 * disposes of the result.
 */
export async function resolveBeneath(
  volume: VolumeRoot,
  names: VolumePath,
  options: ResolveBeneathOptions,
): Promise<ResolvedPath> {
  const walker: Walker = { folder: await openRoot(volume.root), passed: [], trail: [], pending: [...names], links: 0 }
  try {
    walker.trail = [await walker.folder.stat({ bigint: true })]
    return await advance(volume, walker, options)
  } catch (error) {
    await walker.folder.close()
    throw error
  }
}

type Walker = {
  folder: FileHandle
  /** The names from the root to `folder`. None was a symlink when it was opened. */
  passed: string[]
  trail: InodeId[]
  pending: string[]
  links: number
}

async function advance(volume: VolumeRoot, walker: Walker, options: ResolveBeneathOptions): Promise<ResolvedPath> {
  const { path } = options
  const budget = options.budget ?? { steps: STEPS_LIMIT }
  for (;;) {
    const name = walker.pending.shift()
    if (name === undefined) return await resolvedFolder(walker)
    if (--budget.steps < 0) throw invalidPathError(path, 'symlinks make it too long')
    if (name === '..') {
      await goUp(volume, walker, path)
      continue
    }
    const isLast = walker.pending.length === 0
    const handle = await openOrMake(volume, walker, { name, isMade: isMade(options, isLast) })
    if (handle === null) {
      if (options.ifMissing === 'refuse') throw notFoundError(path)
      return resolvedPath(walker, isLast ? name : null, null)
    }
    const stats = await closingOnError(handle, () => handle.stat({ bigint: true }))
    if (stats.isSymbolicLink() && !(isLast && options.lastSymlink === 'keep')) {
      await handle.close()
      await expandSymlink(walker, name, path)
    } else if (isLast) {
      return resolvedPath(walker, name, { handle, stats })
    } else if (stats.isDirectory()) {
      await enter(walker, name, { handle, stats })
    } else {
      await handle.close()
      throw options.ifMissing === 'refuse'
        ? notFoundError(path)
        : conflictError(path, `leads through '${name}', which is not a folder`)
    }
  }
}

async function enter(walker: Walker, name: string, { handle, stats }: OpenEntry): Promise<void> {
  const above = walker.folder
  walker.folder = handle
  walker.passed.push(name)
  walker.trail.push({ dev: stats.dev, ino: stats.ino })
  await above.close()
}

function isMade({ ifMissing }: ResolveBeneathOptions, isLast: boolean): boolean {
  return ifMissing === 'all' || (ifMissing === 'parents' && !isLast)
}

/**
 * Opens a name in a folder. If the name doesn't exist, creates a folder when `isMade` is true, and otherwise returns
 * null.
 */
async function openOrMake(
  volume: VolumeRoot,
  walker: Walker,
  { name, isMade }: { readonly name: string; readonly isMade: boolean },
): Promise<FileHandle | null> {
  const held = await openOrNull(walker.folder, name)
  if (held !== null || !isMade) return held
  try {
    await mkdir(descriptorPath(walker.folder, name), 0o700)
  } catch (error) {
    if (!hasErrorCode(error, 'EEXIST')) throw error
  }
  const made = await openNoFollow(walker.folder, name)
  return await closingOnError(made, async () => {
    await setOwnershipIfOurs(made, { uid: volume.uidShift, gid: volume.uidShift, mode: FOLDER_MODE })
    return made
  })
}

async function openOrNull(folder: FileHandle, name: string): Promise<FileHandle | null> {
  try {
    return await openNoFollow(folder, name)
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return null
    throw error
  }
}

/** Puts the target of a symlink before the pending names. */
async function expandSymlink(walker: Walker, name: string, path: string): Promise<void> {
  if (++walker.links > SYMLINKS_LIMIT) throw invalidPathError(path, 'it leads through too many symlinks')
  const bytes = await readLink(walker.folder, name)
  if (bytes === null) {
    walker.pending.unshift(name) // the symlink was replaced meanwhile
    return
  }
  const target = bytes.toString('utf8')
  if (!Buffer.from(target, 'utf8').equals(bytes))
    throw invalidPathError(path, 'it leads through a symlink that is not UTF-8')
  if (target.startsWith('/')) throw invalidPathError(path, 'it leads through a symlink out of the volume')
  walker.pending.unshift(...target.split('/').filter((part) => part !== '' && part !== '.'))
}

async function readLink(folder: FileHandle, name: string): Promise<Buffer | null> {
  try {
    return await readlink(descriptorPath(folder, name), { encoding: 'buffer' })
  } catch (error) {
    if (hasErrorCode(error, 'EINVAL', 'ENOENT')) return null
    throw error
  }
}

async function goUp(volume: VolumeRoot, walker: Walker, path: string): Promise<void> {
  if (walker.passed.length === 0) throw invalidPathError(path, 'it leads through a symlink out of the volume')
  const root = await openRoot(volume.root)
  const from = walker.folder
  walker.folder = root
  walker.pending.unshift(...walker.passed.slice(0, -1))
  walker.passed = []
  walker.trail = walker.trail.slice(0, 1)
  await from.close()
}

async function resolvedFolder(walker: Walker): Promise<ResolvedPath> {
  const stats = await walker.folder.stat({ bigint: true })
  return resolvedPath(walker, null, { handle: walker.folder, stats })
}

function resolvedPath(walker: Walker, name: string | null, found: OpenEntry | null): ResolvedPath {
  const { folder, trail } = walker
  return {
    folder,
    name,
    found,
    trail,
    async [Symbol.asyncDispose]() {
      await folder.close()
      if (found !== null && found.handle !== folder) await found.handle.close()
    },
  }
}

async function closingOnError<T>(handle: FileHandle, use: () => Promise<T>): Promise<T> {
  try {
    return await use()
  } catch (error) {
    await handle.close()
    throw error
  }
}
