import { withMountName, type PinnedMount } from '../../shared/pin-mounts.ts'
import { resolveUnderMounts, resolveInRoot, PathInRootError, type MountsOverRoot } from '../../shared/resolve-in-root.ts'
import { BlockedPathError, createFile, createFolders, type RootTree } from '../../shared/root-tree.ts'

/** A mount with the path that the runtime mounts it on: behind every symlink, and there. */
export type ResolvedMount = PinnedMount & { readonly guest: string }

/**
 * The mounts in the order in which they are to be made, a parent before what lies in it, each target made when it is
 * missing: in the sandbox's root, or in the volume that will lie over it. Symlinks are followed as the sandbox will see
 * them, within its root. One that changes later can move a mount to elsewhere in that sandbox alone: runtimes resolve
 * targets within its root, in its own mount namespace. Rejects with `StartError` of kind mount, which names the mount.
 */
export async function resolveMounts(tree: RootTree, pinned: readonly PinnedMount[]): Promise<readonly ResolvedMount[]> {
  const withDepth = await Promise.all(
    pinned.map(async (one) => {
      const { guestPath } = await withMountName(one.spec, inWords(resolveInRoot(tree.root, one.spec.guest)))
      return { one, depth: partsOf(guestPath).length }
    }),
  )
  const planned: ResolvedMount[] = []
  for (const { one } of withDepth.toSorted((a, b) => a.depth - b.depth)) {
    const guest = await withMountName(one.spec, inWords(resolveMount(tree, one, planned)))
    planned.push({ ...one, guest })
  }
  return planned
}

/**
 * Makes a folder in the volume that will lie over its place, as `createFolders` does in the root; elsewhere, and in what
 * is mounted readonly, nothing is made.
 */
export async function makeFolderInMounts(
  tree: RootTree,
  path: string,
  planned: readonly ResolvedMount[],
): Promise<void> {
  const { guestPath, exists } = await resolveUnderMounts(tree.root, path, coversOf(planned))
  const over = parentOf(guestPath, planned)
  if (exists || over === undefined || over.pin === null) return
  if (over.spec.type === 'tmpfs' || over.spec.options.readonly) return
  await makeTarget({ root: over.pin, owner: tree.owner }, guestPath.slice(over.guest.length), 'folder')
}

async function resolveMount(tree: RootTree, one: PinnedMount, planned: readonly ResolvedMount[]): Promise<string> {
  const { guestPath, exists } = await resolveUnderMounts(tree.root, one.spec.guest, coversOf(planned))
  const isShm = one.spec.type === 'tmpfs' && guestPath === '/dev/shm'
  if (guestPath === '/' || (isSystemPath(guestPath) && !isShm))
    throw new BlockedPathError("that path is the system's own")
  const hidden = planned.find(({ guest }) => guest === guestPath || guest.startsWith(`${guestPath}/`))
  if (hidden !== undefined) throw new BlockedPathError(`it would hide the one on '${hidden.spec.guest}'`)
  const parent = parentOf(guestPath, planned)
  if (parent === undefined || parent.pin === null) await makeTarget(tree, guestPath, one.kind)
  else if (exists || !parent.spec.options.readonly)
    await makeTarget({ root: parent.pin, owner: tree.owner }, guestPath.slice(parent.guest.length), one.kind)
  else throw new BlockedPathError(`the path is missing in what is mounted readonly on '${parent.spec.guest}'`)
  return guestPath
}

function coversOf(planned: readonly ResolvedMount[]): MountsOverRoot {
  return new Map(planned.flatMap(({ guest, pin }) => (pin === null ? [] : [[guest, pin] as const])))
}

/** The innermost mount above a path: those above it come in the order of their depth. */
function parentOf(guestPath: string, planned: readonly ResolvedMount[]): ResolvedMount | undefined {
  return planned.findLast(({ guest }) => guestPath.startsWith(`${guest}/`))
}

async function makeTarget(tree: RootTree, path: string, kind: PinnedMount['kind']): Promise<void> {
  try {
    await (kind === 'folder' ? createFolders(tree, path) : createFile(tree, path))
  } catch (error) {
    if (!(error instanceof BlockedPathError)) throw error
    throw new BlockedPathError(`a ${kind} can't be mounted there: something else is in the way`)
  }
}

async function inWords<T>(work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (!(error instanceof PathInRootError)) throw error
    const what = error.code === 'ELOOP' ? 'the path has too many symlinks' : 'a file is on the way'
    throw new BlockedPathError(error.code === 'ELOOP' || error.code === 'ENOTDIR' ? what : 'the path leads nowhere')
  }
}

function isSystemPath(guestPath: string): boolean {
  return ['/proc', '/sys', '/dev', '/.msb'].some((path) => guestPath === path || guestPath.startsWith(`${path}/`))
}

function partsOf(path: string): readonly string[] {
  return path.split('/').filter((part) => part !== '')
}
