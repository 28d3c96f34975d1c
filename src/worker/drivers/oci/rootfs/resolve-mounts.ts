import { isServed, withMountName, type PinnedMount } from '../../shared/pin-mounts.ts'
import {
  resolveUnderMounts,
  resolveInRoot,
  PathInRootError,
  type MountsOverRoot,
} from '../../shared/resolve-in-root.ts'
import { BlockedPathError, createFile, createFolders, type RootTree } from '../../shared/root-tree.ts'

/** A mount with its resolved target: the path in the sandbox, which exists and has no symlink in it. */
export type ResolvedMount = PinnedMount & { readonly guest: string }

/**
 * Resolves the targets of mounts, and returns the mounts in the order in which to mount them: a mount comes before the
 * mounts inside it. Creates missing targets in the sandbox's root, or in the volume that will be mounted over that
 * path. Symlinks are resolved as the sandbox will see them, within its root. The runtime also resolves targets within
 * the root. A symlink that changes later can therefore only move a mount within the same sandbox. Rejects with
 * `StartError` of reason `mount`, which names the mount.
 */
export async function resolveMounts(tree: RootTree, pinned: readonly PinnedMount[]): Promise<readonly ResolvedMount[]> {
  const withDepth = await Promise.all(
    pinned.map(async (one) => {
      const { guestPath } = await withMountName(one.spec, describePathError(resolveInRoot(tree.root, one.spec.guest)))
      return { one, depth: partsOf(guestPath).length }
    }),
  )
  const resolved: ResolvedMount[] = []
  for (const { one } of withDepth.toSorted((a, b) => a.depth - b.depth)) {
    const guest = await withMountName(one.spec, describePathError(resolveMount(tree, one, resolved)))
    resolved.push({ ...one, guest })
  }
  return resolved
}

/**
 * Creates a folder at a path of the sandbox in the volume that will be mounted over that path. It is the counterpart of
 * `createFolders`, which creates folders in the root. Does nothing when no volume covers the path, or when the volume
 * is mounted readonly.
 */
export async function makeFolderInMounts(
  tree: RootTree,
  path: string,
  resolved: readonly ResolvedMount[],
): Promise<void> {
  const { guestPath, exists } = await resolveUnderMounts(tree.root, path, coversOf(resolved))
  const over = parentOf(guestPath, resolved)
  if (exists || over === undefined || over.pin === null) return
  if (over.spec.type === 'tmpfs' || isServed(over.spec) || over.spec.options.readonly) return
  await makeTarget({ root: over.pin, owner: tree.owner }, guestPath.slice(over.guest.length), 'folder')
}

async function resolveMount(tree: RootTree, one: PinnedMount, resolved: readonly ResolvedMount[]): Promise<string> {
  const { guestPath, exists } = await resolveUnderMounts(tree.root, one.spec.guest, coversOf(resolved))
  const isShm = one.spec.type === 'tmpfs' && guestPath === '/dev/shm'
  if (guestPath === '/' || (isSystemPath(guestPath) && !isShm))
    throw new BlockedPathError('that path is reserved for the system')
  const hidden = resolved.find(({ guest }) => guest === guestPath || guest.startsWith(`${guestPath}/`))
  if (hidden !== undefined) throw new BlockedPathError(`it would hide the mount on '${hidden.spec.guest}'`)
  const parent = parentOf(guestPath, resolved)
  if (parent !== undefined && isServed(parent.spec)) {
    const what = parent.spec.type === 'disk_image' ? 'the disk image' : "the mount with 'stat_virtualization: off'"
    throw new BlockedPathError(`a mount can't be inside ${what} on '${parent.spec.guest}'`)
  }
  if (parent === undefined || parent.pin === null) await makeTarget(tree, guestPath, one.kind)
  else if (exists || !parent.spec.options.readonly)
    await makeTarget({ root: parent.pin, owner: tree.owner }, guestPath.slice(parent.guest.length), one.kind)
  else throw new BlockedPathError(`the path is missing in the readonly mount on '${parent.spec.guest}'`)
  return guestPath
}

function coversOf(resolved: readonly ResolvedMount[]): MountsOverRoot {
  return new Map(
    resolved.flatMap(({ guest, pin, spec }) => (pin === null ? [] : [[guest, isServed(spec) ? null : pin] as const])),
  )
}

/** Returns the innermost mount above a path. `resolved` lists outer mounts before the mounts inside them. */
function parentOf(guestPath: string, resolved: readonly ResolvedMount[]): ResolvedMount | undefined {
  return resolved.findLast(({ guest }) => guestPath.startsWith(`${guest}/`))
}

async function makeTarget(tree: RootTree, path: string, kind: PinnedMount['kind']): Promise<void> {
  try {
    await (kind === 'folder' ? createFolders(tree, path) : createFile(tree, path))
  } catch (error) {
    if (!(error instanceof BlockedPathError)) throw error
    throw new BlockedPathError(`a ${kind} can't be mounted there: the path has another type`)
  }
}

async function describePathError<T>(work: Promise<T>): Promise<T> {
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
