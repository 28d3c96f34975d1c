import { constants } from 'node:fs'
import { chmod, lchown, open, readdir, readlink, rm, symlink, type FileHandle } from 'node:fs/promises'
import { dirname, join, posix } from 'node:path'
import type { Patch } from '../../../domain/spec/spec.ts'
import { errorCodeOf } from '../../../lib/error-code.ts'
import { lstatOrNull } from '../../../lib/files.ts'
import { StartError } from '../../start-error.ts'
import { BlockedPathError, createFolders, putFile, putText, type RootTree } from './root-tree.ts'
import type { RunVolumes } from './run-volumes.ts'
import { withParentFolder, openInRoot, resolveInRoot, PathInRootError } from './resolve-in-root.ts'

type DefaultVolume = Pick<RunVolumes, 'default'>

/** The maximum depth of nested folders that `copy_dir` accepts. */
const MAX_DEPTH = 100

/**
 * Applies a spec's patches, in order, beneath a sandbox's root. `copy_file` and `copy_dir` read from the organization's
 * default volume, which other sandboxes may change at the same time. Rejects with `StartError` of reason `patch`, whose
 * message names the patch and its path.
 */
export async function applyPatches(tree: RootTree, patches: readonly Patch[], volumes: DefaultVolume): Promise<void> {
  for (const [index, patch] of patches.entries()) {
    try {
      await applyPatch(tree, patch, volumes)
    } catch (error) {
      throw new StartError('patch', `patch ${String(index)} (${patch.type}): ${reasonOf(error, patch)}`, error)
    }
  }
}

async function applyPatch(tree: RootTree, patch: Patch, volumes: DefaultVolume): Promise<void> {
  switch (patch.type) {
    case 'text':
      await refuseExisting(tree, patch.path, patch.replace)
      return await putText(tree, patch.path, { mode: patch.mode ?? 0o644, text: patch.content })
    case 'file': {
      await refuseExisting(tree, patch.path, patch.replace)
      const content = Buffer.from(patch.content, 'base64')
      return await putFile(tree, patch.path, { mode: patch.mode ?? 0o644, fill: (handle) => handle.writeFile(content) })
    }
    case 'copy_file':
      await refuseExisting(tree, patch.dst, patch.replace)
      return await copyFile(tree, patch, volumes)
    case 'copy_dir':
      await refuseExisting(tree, patch.dst, patch.replace)
      return await copyFolder(tree, patch, volumes)
    case 'symlink':
      await refuseExisting(tree, patch.link, patch.replace)
      return await putLink(tree, patch.link, patch.target)
    case 'mkdir':
      await createFolders(tree, patch.path)
      if (patch.mode !== null) await chmod((await resolveInRoot(tree.root, patch.path)).hostPath, patch.mode)
      return
    case 'remove':
      return await remove(tree, patch.path)
    case 'append':
      return await append(tree, patch.path, patch.content)
  }
}

async function refuseExisting(tree: RootTree, path: string, replace: boolean): Promise<void> {
  if (!replace && (await resolveInRoot(tree.root, path, { followLast: false })).exists)
    throw new BlockedPathError(`'${path}' exists`)
}

async function copyFile(
  tree: RootTree,
  patch: Extract<Patch, { type: 'copy_file' }>,
  volumes: DefaultVolume,
): Promise<void> {
  const source = await openInRoot(await volumes.default(), patch.src)
  try {
    const stat = await source.stat()
    if (!stat.isFile()) throw new BlockedPathError(`'${patch.src}' is not a file`)
    await putFile(tree, patch.dst, {
      mode: patch.mode ?? stat.mode & 0o777,
      fill: (handle) => copyContent(source, handle),
    })
  } finally {
    await source.close()
  }
}

async function copyFolder(
  tree: RootTree,
  patch: Extract<Patch, { type: 'copy_dir' }>,
  volumes: DefaultVolume,
): Promise<void> {
  const source = await openInRoot(await volumes.default(), patch.src)
  try {
    if (!(await source.stat()).isDirectory()) throw new BlockedPathError(`'${patch.src}' is not a folder`)
    await copyEntries(tree, source, { path: patch.dst, depth: 0 })
  } finally {
    await source.close()
  }
}

/**
 * Copies a folder's entries. Opens each entry relative to the open handle of its folder, so a concurrent change of the
 * volume can't redirect the copy.
 */
async function copyEntries(
  tree: RootTree,
  source: FileHandle,
  to: { readonly path: string; readonly depth: number },
): Promise<void> {
  if (to.depth > MAX_DEPTH) throw new BlockedPathError(`'${to.path}' is deeper than ${String(MAX_DEPTH)} folders`)
  await createFolders(tree, to.path, (await source.stat()).mode & 0o777)
  const folder = `/proc/self/fd/${String(source.fd)}`
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const path = posix.join(to.path, entry.name)
    if (entry.isSymbolicLink()) {
      await putLink(tree, path, await readlink(join(folder, entry.name)))
      continue
    }
    if (!entry.isFile() && !entry.isDirectory())
      throw new BlockedPathError(`'${entry.name}' is neither file, folder nor symlink`)
    const handle = await open(
      join(folder, entry.name),
      constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK,
    )
    try {
      if (entry.isDirectory()) await copyEntries(tree, handle, { path, depth: to.depth + 1 })
      else
        await putFile(tree, path, {
          mode: (await handle.stat()).mode & 0o777,
          fill: (target) => copyContent(handle, target),
        })
    } finally {
      await handle.close()
    }
  }
}

async function copyContent(source: FileHandle, target: FileHandle): Promise<void> {
  const buffer = Buffer.alloc(256 * 1024)
  for (;;) {
    const { bytesRead } = await source.read(buffer, 0, buffer.length, null)
    if (bytesRead === 0) return
    await target.writeFile(buffer.subarray(0, bytesRead))
  }
}

async function putLink(tree: RootTree, link: string, target: string): Promise<void> {
  await createFolders(tree, dirname(link))
  await withParentFolder(tree, link, async (folder, name) => {
    const path = join(folder, name)
    if ((await lstatOrNull(path))?.isDirectory() === true) throw new BlockedPathError(`'${link}' is a folder`)
    await rm(path, { force: true })
    await symlink(target, path)
    await lchown(path, tree.owner, tree.owner)
  })
}

/** Removes a path. Succeeds if the path does not exist. */
async function remove(tree: RootTree, path: string): Promise<void> {
  const found = await resolveInRoot(tree.root, path, { followLast: false })
  if (!found.exists) return
  await withParentFolder(tree, found.guestPath, (folder, name) => rm(join(folder, name), { recursive: true }))
}

/** Appends to a file. Follows symlinks within the root. Creates a missing file, as a shell's `>>` does. */
async function append(tree: RootTree, path: string, content: string): Promise<void> {
  const found = await resolveInRoot(tree.root, path)
  if (!found.exists) return await putText(tree, found.guestPath, { mode: 0o644, text: content })
  await withParentFolder(tree, found.guestPath, async (folder, name) => {
    const flags = constants.O_WRONLY | constants.O_APPEND | constants.O_NOFOLLOW | constants.O_NONBLOCK
    const handle = await open(join(folder, name), flags)
    try {
      if (!(await handle.stat()).isFile()) throw new BlockedPathError(`'${path}' is not a file`)
      await handle.writeFile(content)
    } finally {
      await handle.close()
    }
  })
}

/** Returns a message for the sandbox's owner. It contains paths as the owner wrote them, and no path of this machine. */
function reasonOf(error: unknown, patch: Patch): string {
  if (error instanceof BlockedPathError) return error.message
  const where = 'path' in patch ? patch.path : 'src' in patch ? `${patch.src} to ${patch.dst}` : patch.link
  if (error instanceof PathInRootError) return `${error.message}`
  const code = errorCodeOf(error) ?? 'failed'
  return `${code}: ${where}`
}
