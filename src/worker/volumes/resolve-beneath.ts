import type { BigIntStats } from 'node:fs'
import { mkdir, readlink, type FileHandle } from 'node:fs/promises'
import type { VolumePath } from '../../domain/volumes/volume-path.ts'
import { FOLDER_MODE, descriptorPath, openNoFollow, openRoot, setOwnershipIfOurs } from './descriptors.ts'
import { conflictError, invalidPathError, hasErrorCode, notFoundError } from './file-errors.ts'

/**
 * Walks beneath the root of a volume, whose tree a sandbox may change at any moment. Each step holds one name beneath the
 * descriptor of the folder before and never follows; symlinks are read and walked by the same rule. `..`, which only
 * links may hold, walks anew from the root to the folder above, so that a folder that was moved meanwhile can't lead out.
 * At most three descriptors are held at once, whatever the depth.
 */
export type VolumeRoot = { readonly root: string; readonly uidShift: number }

/** Where a path leads. Disposing of it lets go of its descriptors. */
export type ResolvedPath = AsyncDisposable & {
  /** The folder that holds it; when folders are missing on the way, the last that is there; for the root, the root. */
  readonly folder: FileHandle
  /** Its name in `directoryPath`; null for the root, and when folders are missing on the way. */
  readonly name: string | null
  /** What lies there; null when nothing does. */
  readonly found: OpenEntry | null
  /** The folders from the root to `directoryPath`. */
  readonly trail: readonly InodeId[]
}
export type OpenEntry = { readonly handle: FileHandle; readonly stats: BigIntStats }
export type InodeId = Pick<BigIntStats, 'dev' | 'ino'>

type ResolveBeneathOptions = {
  /** The path as the client wrote it, for refusals. */
  readonly path: string
  /** Whether a symlink under the last name is followed or is itself what is meant. */
  readonly lastSymlink: 'follow' | 'keep'
  /**
   * What is not there: `refuseField` with `volume_file_not_found`; `tell` by `found: null`; make the folders `above` it; make
   * `all` as folders.
   */
  readonly ifMissing: 'refuse' | 'tell' | 'above' | 'all'
  /** Shared by several walks that are to be bounded together. */
  readonly budget?: StepBudget
}

/** How many steps are left; links make a short path long. */
export type StepBudget = { steps: number }

/** More than a path of 4,096 bytes can have without symlinks (2,048), and with sane ones; walked in about half a second. */
const STEPS_LIMIT = 8_192
/** Linux's own limit on symlinks in one path (path_resolution(7)). */
const SYMLINKS_LIMIT = 40

/** See `VolumeRoot`. Refuses with `VolumeFileError`, or with the kernel's error; the caller disposes of the place. */
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
  /** Names from the root to `directoryPath`, no symlink among them when they were passed. */
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
        : conflictError(path, `leads through '${name}', which is no folder`)
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
  return ifMissing === 'all' || (ifMissing === 'above' && !isLast)
}

/** Null when there is nothing of that name; a folder is made of it when that is wished. */
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

/** Puts what a symlink says before what is pending. */
async function expandSymlink(walker: Walker, name: string, path: string): Promise<void> {
  if (++walker.links > SYMLINKS_LIMIT) throw invalidPathError(path, 'it leads through too many symlinks')
  const bytes = await readLink(walker.folder, name)
  if (bytes === null) {
    walker.pending.unshift(name) // it is another thing now
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
