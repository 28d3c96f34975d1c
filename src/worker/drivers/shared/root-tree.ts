import {
  chmodSync,
  closeSync,
  constants,
  existsSync,
  fchmodSync,
  fchownSync,
  lchownSync,
  lstatSync,
  mkdirSync,
  openSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs'
import { chmod, lchown, lstat, mkdir, open, rm, type FileHandle } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { hasErrorCode } from '../../../lib/error-code.ts'
import { lstatOrNull } from '../../../lib/files.ts'
import { OwnerVisibleError } from '../../start-error.ts'
import { withParentFolder, resolveInRoot } from './resolve-in-root.ts'

/** A sandbox's root file system, for writing. No write follows a symlink out of `root`. New files belong to user `owner`. */
export type RootTree = {
  readonly root: string
  readonly owner: number
  /** See `ResolveOptions` in `resolve-in-root.ts`. */
  readonly isFresh?: boolean
}

const NEW_FILE = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW

/**
 * The error for a path that can't be written because something else exists there. The message names the path as the
 * sandbox's owner knows it.
 */
export class BlockedPathError extends OwnerVisibleError {}

/** Creates a folder and its missing parents. An existing folder keeps its mode. Several calls may run at once. */
export async function createFolders(tree: RootTree, guestPath: string, mode = 0o755): Promise<void> {
  const found = await resolveInRoot(tree.root, guestPath, freshness(tree))
  if (found.exists) {
    const stat = tree.isFresh === true ? lstatSync(found.hostPath) : await lstat(found.hostPath)
    if (!stat.isDirectory()) throw new BlockedPathError(`'${guestPath}' exists and is not a folder`)
    return
  }
  await createFolders(tree, dirname(found.guestPath))
  await withParentFolder(tree, found.guestPath, async (folder, name) => {
    const path = join(folder, name)
    if (tree.isFresh === true) {
      if (existsSync(path)) return
      mkdirSync(path)
      lchownSync(path, tree.owner, tree.owner)
      chmodSync(path, mode)
      return
    }
    if (!(await makeFolder(path))) return
    await lchown(path, tree.owner, tree.owner)
    await chmod(path, mode)
  })
}

/** Creates a folder. Returns false if it exists already, for example because a concurrent call has just created it. */
async function makeFolder(path: string): Promise<boolean> {
  try {
    await mkdir(path)
    return true
  } catch (error) {
    if (hasErrorCode(error, 'EEXIST')) return false
    throw error
  }
}

/**
 * Creates a file and its missing parent folders, and calls `fill` to write its content. Replaces an existing file or symlink
 * without following it. Rejects with `BlockedPathError` if a folder exists at the path.
 */
export async function putFile(
  tree: RootTree,
  guestPath: string,
  file: { readonly mode: number; readonly fill: (handle: FileHandle) => Promise<void> },
): Promise<void> {
  await createFolders(tree, dirname(guestPath))
  await withParentFolder(tree, guestPath, async (folder, name) => {
    const path = join(folder, name)
    if ((await lstatOrNull(path))?.isDirectory() === true) throw new BlockedPathError(`'${guestPath}' is a folder`)
    await rm(path, { force: true })
    const handle = await open(path, NEW_FILE, 0o600)
    try {
      await file.fill(handle)
      await handle.chown(tree.owner, tree.owner)
      await handle.chmod(file.mode)
    } finally {
      await handle.close()
    }
  })
}

/** Creates an empty file and its missing parent folders. An existing file stays unchanged. */
export async function createFile(tree: RootTree, guestPath: string): Promise<void> {
  const found = await resolveInRoot(tree.root, guestPath, freshness(tree))
  await createFolders(tree, dirname(found.guestPath))
  await withParentFolder(tree, found.guestPath, async (folder, name) => {
    const stat = await lstatOrNull(join(folder, name))
    if (stat !== null) {
      if (!stat.isFile()) throw new BlockedPathError(`'${guestPath}' exists and is not a file`)
      return
    }
    const handle = await open(join(folder, name), NEW_FILE, 0o644)
    try {
      await handle.chown(tree.owner, tree.owner)
    } finally {
      await handle.close()
    }
  })
}

/** Creates a file with the given text. Otherwise behaves like `putFile`. */
export async function putText(
  tree: RootTree,
  guestPath: string,
  file: { readonly mode: number; readonly text: string },
): Promise<void> {
  if (tree.isFresh === true) await putTextAtOnce(tree, guestPath, file)
  else await putFile(tree, guestPath, { mode: file.mode, fill: (handle) => handle.writeFile(file.text) })
}

/** Like `putText`, but with synchronous file operations. See `openStepSync` in `held-step.ts`. */
async function putTextAtOnce(
  tree: RootTree,
  guestPath: string,
  { mode, text }: { readonly mode: number; readonly text: string },
): Promise<void> {
  await createFolders(tree, dirname(guestPath))
  await withParentFolder(tree, guestPath, (folder, name) => {
    const path = join(folder, name)
    const found = lstatSync(path, { throwIfNoEntry: false })
    if (found?.isDirectory() === true) throw new BlockedPathError(`'${guestPath}' is a folder`)
    if (found !== undefined) unlinkSync(path)
    const fd = openSync(path, NEW_FILE, 0o600)
    try {
      writeFileSync(fd, text)
      fchownSync(fd, tree.owner, tree.owner)
      fchmodSync(fd, mode)
    } finally {
      closeSync(fd)
    }
    return Promise.resolve()
  })
}

function freshness({ isFresh = false }: RootTree): { readonly isFresh: boolean } {
  return { isFresh }
}
