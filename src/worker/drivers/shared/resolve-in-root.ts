import { constants, closeSync, fstatSync, openSync, readSync } from 'node:fs'
import { open, readlink, type FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrorCode } from '../../../lib/error-code.ts'
import {
  handlePath,
  isSymlink,
  openStepAsync,
  openStepSync,
  ROOT_FLAGS,
  STEP_FLAGS,
  type HeldStep,
} from './held-step.ts'

/**
 * A path in a sandbox's root, resolved as chroot(2) does and like `RESOLVE_IN_ROOT` of openat2(2). An absolute symlink
 * starts again at the root, and `..` at the root stays there. For paths in volumes, use `resolveBeneath`. It refuses
 * absolute symlinks and `..` above the root, like `RESOLVE_BENEATH`.
 *
 * Each step opens one name beneath the handle of the previous step (`/proc/self/fd/N/name`) and follows no symlink.
 * Therefore no path leads out of the root even while the tree changes. This also works if the root is
 * `/proc/<pid>/root`, where a comparison of paths would not help. At a `..`, resolving restarts at the root. At most four
 * descriptors are open at a time, at any depth.
 */
type PathInRoot = {
  /**
   * The path on the host. It may become wrong when the tree changes. To read or write safely, use `openInRoot` or
   * `withParentFolder`.
   */
  readonly hostPath: string
  /** The absolute path as seen from the root. None of its existing parts is a symlink. */
  readonly guestPath: string
  readonly exists: boolean
}

/** Options for resolving a path. */
export type ResolveOptions = {
  /** Whether to follow a symlink that is the last part of the path. Default true. */
  readonly followLast?: boolean
  /**
   * True for a root in which no process runs and no volume is mounted. Opening its files never blocks, so the first ones are
   * opened synchronously.
   */
  readonly isFresh?: boolean
  /** Bounds the steps of several paths together. By default, each path has a budget of its own. */
  readonly budget?: StepBudget
}

/** The number of steps left. */
export type StepBudget = { steps: number }

export function newStepBudget(): StepBudget {
  return { steps: STEPS_MAX }
}

/** A path that could not be resolved. `code` is the error code of the kernel. */
export class PathInRootError extends Error {
  readonly code: 'ELOOP' | 'ENOTDIR' | 'ENOENT' | 'EINVAL'
  constructor(code: PathInRootError['code'], guestPath: string) {
    super(`${code}: ${guestPath}`)
    this.code = code
  }
}

/** The limit on symlinks in one path, the same as Linux's (path_resolution(7)). */
const MAX_SYMLINKS = 40
/** The most steps to a path. A path of 4,096 bytes (PATH_MAX) has no more names; symlinks can make it much longer. */
const STEPS_MAX = 2_048
/** The first steps of a fresh root are opened on this thread. A hostile image can have more, which must not hold up others. */
const QUICK_STEPS_MAX = 256

/**
 * Resolves a path of the sandbox in `root`. The path need not exist. Rejects with `PathInRootError` for a loop of
 * symlinks, for symlinks that make the path too long, and for a file used as a folder.
 */
export async function resolveInRoot(
  root: string,
  guestPath: string,
  options: ResolveOptions = {},
): Promise<PathInRoot> {
  return await withWalk({ root, covers: null, ...options }, guestPath, options.followLast ?? true, (walk) => {
    const names = [...walk.names, ...walk.missing]
    const resolved = `/${names.join('/')}`
    return Promise.resolve({ hostPath: join(root, ...names), guestPath: resolved, exists: walk.missing.length === 0 })
  })
}

/**
 * The mounts over a root: the host path of each mount, by the resolved guest path that the mount covers. Null for a mount that
 * the host can't look into: resolving ends there.
 */
export type MountsOverRoot = ReadonlyMap<string, string | null>

/**
 * Resolves a path as the sandbox will see it once `covers` are mounted. At a path that a mount covers, resolving
 * continues in that mount. The result has no host path, because the parts of the path may be in different mounts.
 */
export async function resolveUnderMounts(
  root: string,
  guestPath: string,
  covers: MountsOverRoot,
): Promise<Pick<PathInRoot, 'guestPath' | 'exists'>> {
  return await withWalk({ root, covers }, guestPath, true, (walk) => {
    const names = [...walk.names, ...walk.missing]
    return Promise.resolve({ guestPath: `/${names.join('/')}`, exists: walk.missing.length === 0 })
  })
}

/**
 * Opens a regular file or folder in `root` for reading. Follows symlinks within the root. Rejects with `PathInRootError`:
 * `EINVAL` for devices, FIFOs and sockets. The caller closes the handle.
 */
export async function openInRoot(
  root: string,
  guestPath: string,
  options: Omit<ResolveOptions, 'followLast'> = {},
): Promise<FileHandle> {
  return await withWalk({ root, covers: null, ...options }, guestPath, true, async (walk) =>
    open(await readablePath(walk, guestPath), READ_FLAGS),
  )
}

/**
 * Reads at most `limitBytes` from the beginning of a file in `root`. Rejects like `openInRoot`, and with `EISDIR` for a folder. With
 * `isFresh`, it reads on this thread too: the users of a sandbox are read for its first command.
 */
export async function readInRoot(
  root: string,
  guestPath: string,
  { isFresh = false, limitBytes }: Pick<ResolveOptions, 'isFresh'> & { readonly limitBytes: number },
): Promise<Buffer> {
  if (!isFresh) {
    await using handle = await openInRoot(root, guestPath)
    const buffer = Buffer.alloc(Math.min((await handle.stat()).size, limitBytes))
    const { bytesRead } = await handle.read(buffer, 0, buffer.length, 0)
    return buffer.subarray(0, bytesRead)
  }
  return await withWalk({ root, covers: null, isFresh }, guestPath, true, async (walk) => {
    const fd = openSync(await readablePath(walk, guestPath), READ_FLAGS)
    try {
      const buffer = Buffer.alloc(Math.min(fstatSync(fd).size, limitBytes))
      return buffer.subarray(0, readSync(fd, buffer, 0, buffer.length, 0))
    } finally {
      closeSync(fd)
    }
  })
}

const READ_FLAGS = constants.O_RDONLY | constants.O_NONBLOCK

/** The path at which the regular file or folder at the end of a walk can be opened. */
async function readablePath(walk: Walk, guestPath: string): Promise<string> {
  if (walk.missing.length > 0) throw new PathInRootError('ENOENT', guestPath)
  const stat = await walk.at.stat()
  if (!stat.isFile() && !stat.isDirectory()) throw new PathInRootError('EINVAL', guestPath)
  return handlePath(walk.at)
}

/**
 * Opens the parent folder of a path and calls `use` with the folder and the path's last name. The last name may be missing, and
 * a symlink there is not followed. The folder's path stays valid while `use` runs, even if the folder is moved. Rejects with
 * `ENOENT` if the folder is missing, and with `EINVAL` for the root itself.
 */
export async function withParentFolder<T>(
  { root, isFresh = false }: { readonly root: string } & Pick<ResolveOptions, 'isFresh'>,
  guestPath: string,
  use: (folder: string, name: string) => Promise<T>,
): Promise<T> {
  return await withWalk({ root, covers: null, isFresh }, guestPath, false, async (walk) => {
    const [missing] = walk.missing
    if (missing !== undefined) {
      if (walk.missing.length > 1) throw new PathInRootError('ENOENT', guestPath)
      return await use(handlePath(walk.at), missing)
    }
    const name = walk.names.at(-1)
    if (name === undefined || walk.above === null) throw new PathInRootError('EINVAL', guestPath)
    return await use(handlePath(walk.above), name)
  })
}

type Walk = {
  readonly root: HeldStep
  readonly covers: MountsOverRoot | null
  readonly isFresh: boolean
  readonly budget: StepBudget
  /** The names from the root to `at`, without symlinks. */
  readonly names: string[]
  /** The file or folder that the walk has come to. */
  at: HeldStep
  /** The folder that has `at`. Null at the root. */
  above: HeldStep | null
  missing: readonly string[]
}
type Start = { readonly root: string; readonly covers: MountsOverRoot | null } & Omit<ResolveOptions, 'followLast'>

async function withWalk<T>(
  { root: path, covers, isFresh = false, budget = newStepBudget() }: Start,
  guestPath: string,
  followLast: boolean,
  use: (walk: Walk) => Promise<T>,
): Promise<T> {
  const root = await (isFresh ? openStepSync : openStepAsync)(path, ROOT_FLAGS)
  const walk: Walk = { root, covers, isFresh, budget, names: [], at: root, above: null, missing: [] }
  try {
    await advance(walk, guestPath, followLast)
    return await use(walk)
  } finally {
    await restart(walk)
    await root.close()
  }
}

async function advance(walk: Walk, guestPath: string, followLast: boolean): Promise<void> {
  if (guestPath.includes('\0')) throw new PathInRootError('EINVAL', guestPath)
  const pending = partsOf(guestPath).reverse() // the next part is the last
  let symlinks = 0
  for (let part = pending.pop(); part !== undefined; part = pending.pop()) {
    if (walk.budget.steps <= pending.length) throw new PathInRootError('ELOOP', guestPath)
    walk.budget.steps -= 1
    if (part === '..') {
      pending.push(...walk.names.slice(0, -1).reverse())
      await restart(walk)
      continue
    }
    const path = join(handlePath(walk.at), part)
    const cover = walk.covers?.get(`/${[...walk.names, part].join('/')}`)
    const handle = cover === null ? null : await openStep(walk, cover ?? path, guestPath)
    if (handle === null) {
      walk.missing = normalizeMissing([part, ...pending.reverse()])
      return
    }
    const isLink = await isSymlink(handle)
    if (!isLink || (pending.length === 0 && !followLast)) {
      await enter(walk, part, handle)
      continue
    }
    await handle.close()
    if (++symlinks > MAX_SYMLINKS) throw new PathInRootError('ELOOP', guestPath)
    const target = await readlink(path)
    if (target.startsWith('/')) await restart(walk)
    pending.push(...partsOf(target).reverse())
  }
}

async function enter(walk: Walk, name: string, handle: HeldStep): Promise<void> {
  const { above } = walk
  walk.names.push(name)
  walk.above = walk.at
  walk.at = handle
  if (above !== null && above !== walk.root) await above.close()
}

async function restart(walk: Walk): Promise<void> {
  const { root, above, at } = walk
  walk.names.length = 0
  walk.above = null
  walk.at = root
  for (const handle of [above, at]) if (handle !== null && handle !== root) await handle.close()
}

async function openStep({ isFresh, budget }: Walk, path: string, guestPath: string): Promise<HeldStep | null> {
  const isQuick = isFresh && budget.steps >= STEPS_MAX - QUICK_STEPS_MAX
  try {
    return await (isQuick ? openStepSync : openStepAsync)(path, STEP_FLAGS)
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return null
    if (hasErrorCode(error, 'ENOTDIR')) throw new PathInRootError('ENOTDIR', guestPath)
    throw error
  }
}

function partsOf(path: string): string[] {
  return path.split('/').filter((part) => part !== '' && part !== '.')
}

/**
 * Resolves `..` in the missing part of a path. A missing part contains no symlinks, so `..` removes the name before it.
 * The result never leads above the folder in which the missing part begins.
 */
function normalizeMissing(parts: readonly string[]): readonly string[] {
  const kept: string[] = []
  for (const part of parts) {
    if (part === '..') kept.pop()
    else kept.push(part)
  }
  return kept
}
