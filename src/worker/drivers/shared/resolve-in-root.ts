import { constants, closeSync, fstatSync, openSync, readSync, type Stats } from 'node:fs'
import { open, readlink, type FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrorCode } from '../../../lib/error-code.ts'

/**
 * A path in a sandbox's root, resolved as chroot(2) does and like `RESOLVE_IN_ROOT` of openat2(2). An absolute symlink
 * starts again at the root, and `..` at the root stays there. For paths in volumes, use `resolveBeneath`. It refuses
 * absolute symlinks and `..` above the root, like `RESOLVE_BENEATH`.
 *
 * Each step opens one name beneath the handle of the previous step (`/proc/self/fd/N/name`) and follows no symlink.
 * Therefore no path leads out of the root even while the tree changes. This also works if the root is
 * `/proc/<pid>/root`, where a comparison of paths would not help.
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
   * True for a root in which no process runs and no volume is mounted. Opening its files never blocks, so they are
   * opened synchronously.
   */
  readonly isFresh?: boolean
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
/** Linux's O_PATH, which Node's constants lack. It has this value on every architecture that Node supports. */
const O_PATH = 0o10000000
const STEP_FLAGS = O_PATH | constants.O_NOFOLLOW

/**
 * Resolves a path of the sandbox in `root`. The path need not exist. Rejects with `PathInRootError` for a loop of
 * symlinks, and for a file used as a folder.
 */
export async function resolveInRoot(
  root: string,
  guestPath: string,
  options: ResolveOptions = {},
): Promise<PathInRoot> {
  return await withWalk({ root, covers: null, ...options }, guestPath, options.followLast ?? true, (walk) => {
    const names = [...walk.steps.map((step) => step.name), ...walk.missing]
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
    const names = [...walk.steps.map((step) => step.name), ...walk.missing]
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
  options: Pick<ResolveOptions, 'isFresh'> = {},
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
  const last = walk.steps.at(-1)?.handle ?? walk.root
  const stat = await last.stat()
  if (!stat.isFile() && !stat.isDirectory()) throw new PathInRootError('EINVAL', guestPath)
  return handlePath(last)
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
      return await use(handlePath(walk.steps.at(-1)?.handle ?? walk.root), missing)
    }
    const last = walk.steps.at(-1)
    if (last === undefined) throw new PathInRootError('EINVAL', guestPath)
    return await use(handlePath(walk.steps.at(-2)?.handle ?? walk.root), last.name)
  })
}

type Step = { readonly name: string; readonly handle: HeldStep }
type Walk = {
  readonly root: HeldStep
  readonly open: OpenStep
  readonly covers: MountsOverRoot | null
  readonly steps: Step[]
  missing: readonly string[]
}
type Start = { readonly root: string; readonly covers: MountsOverRoot | null; readonly isFresh?: boolean }

async function withWalk<T>(
  { root, covers, isFresh = false }: Start,
  guestPath: string,
  followLast: boolean,
  use: (walk: Walk) => Promise<T>,
): Promise<T> {
  const openStep = isFresh ? openStepSync : openStepAsync
  const walk: Walk = {
    root: await openStep(root, O_PATH | constants.O_DIRECTORY),
    open: openStep,
    covers,
    steps: [],
    missing: [],
  }
  try {
    await advance(walk, guestPath, followLast)
    return await use(walk)
  } finally {
    await Promise.all([...walk.steps.map((step) => step.handle.close()), walk.root.close()])
  }
}

async function advance(walk: Walk, guestPath: string, followLast: boolean): Promise<void> {
  if (guestPath.includes('\0')) throw new PathInRootError('EINVAL', guestPath)
  const pending = partsOf(guestPath)
  let symlinks = 0
  for (let part = pending.shift(); part !== undefined; part = pending.shift()) {
    if (part === '..') {
      await walk.steps.pop()?.handle.close()
      continue
    }
    const folder = handlePath(walk.steps.at(-1)?.handle ?? walk.root)
    const cover = walk.covers?.get(`/${[...walk.steps.map((step) => step.name), part].join('/')}`)
    const handle = cover === null ? null : await openStep(walk, cover ?? join(folder, part), guestPath)
    if (handle === null) {
      walk.missing = normalizeMissing([part, ...pending])
      return
    }
    const isLink = await isSymlink(handle)
    if (!isLink || (pending.length === 0 && !followLast)) {
      walk.steps.push({ name: part, handle })
      continue
    }
    await handle.close()
    if (++symlinks > MAX_SYMLINKS) throw new PathInRootError('ELOOP', guestPath)
    const target = await readlink(join(folder, part))
    if (target.startsWith('/')) await Promise.all(walk.steps.splice(0).map((step) => step.handle.close()))
    pending.unshift(...partsOf(target))
  }
}

async function isSymlink(handle: HeldStep): Promise<boolean> {
  try {
    return (await handle.stat()).isSymbolicLink()
  } catch (error) {
    await handle.close()
    throw error // EACCES: a disk image, which only the sandbox may enter
  }
}

async function openStep({ open }: Walk, path: string, guestPath: string): Promise<HeldStep | null> {
  try {
    return await open(path, STEP_FLAGS)
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return null
    if (hasErrorCode(error, 'ENOTDIR')) throw new PathInRootError('ENOTDIR', guestPath)
    throw error
  }
}

function handlePath(handle: HeldStep): string {
  return `/proc/self/fd/${String(handle.fd)}`
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

/** One open step of a path: a folder on the way, or the file or folder at its end. */
type HeldStep = { readonly fd: number; stat(): Promise<Stats>; close(): Promise<void> }

/** Opens one step of a path. Rejects with the kernel's error code. */
type OpenStep = (path: string, flags: number) => Promise<HeldStep>

/** Opens a step on another thread, because opening may block, for example on a volume whose server is unreachable. */
const openStepAsync: OpenStep = open

/**
 * Opens a step on this thread, for files that the kernel has in memory. A step takes 4 us of processor time; on another
 * thread it would take 45 us. Each start of a sandbox opens about sixty steps (2026-11).
 */
export const openStepSync: OpenStep = async (path, flags) => {
  const fd = await Promise.resolve(openSync(path, flags))
  return {
    fd,
    stat: () => Promise.resolve(fstatSync(fd)),
    close() {
      closeSync(fd)
      return Promise.resolve()
    },
  }
}
