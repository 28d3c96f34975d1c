import { existsSync } from 'node:fs'
import { chown, lstat, mkdir, readdir, rmdir, unlink, writeFile, type FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import type { BindMount, Mount, MountOptions, NamedMount, TmpfsMount } from '../../../domain/spec/spec.ts'
import type { CommandRunner } from '../../../lib/run-command.ts'
import { openRoot } from '../../volumes/descriptors.ts'
import { mount } from '../../mounts.ts'
import { BlockedPathError } from './root-tree.ts'
import type { RunVolumes } from './run-volumes.ts'
import { withStartFailure } from '../../start-error.ts'
import { VolumeFileError } from '../../../contract/volumes/volume-protocol.ts'
import { parseVolumePath } from '../../../domain/volumes/volume-path.ts'
import { resolveBeneath, type VolumeRoot } from '../../volumes/resolve-beneath.ts'
import { translateErrors } from '../../volumes/file-errors.ts'

/**
 * A mount whose source no sandbox can replace. Sandboxes write to volumes, so a path in a volume may point elsewhere at any
 * time. The driver opens the source once and bind mounts it on a pin, a path that no sandbox can change. The runtime mounts the
 * pin.
 */
export type PinnedMount =
  | { readonly spec: BindMount | NamedMount; readonly pin: string; readonly kind: 'folder' | 'file' }
  /**
   * The runtime creates the tmpfs itself. The pin is an empty tmpfs, used to resolve the targets of mounts inside it. Null if
   * the run has no other mounts.
   */
  | { readonly spec: TmpfsMount; readonly pin: string | null; readonly kind: 'folder' }

/** Creates `folder` and pins every mount of a run there. Rejects with `StartError` of reason `mount`, which names the mount. */
export async function pinMounts(
  { settings, commands }: { readonly settings: { readonly uidShift: number }; readonly commands: CommandRunner },
  { spec }: DesiredRun,
  { volumes, folder }: { readonly volumes: RunVolumes; readonly folder: string },
): Promise<readonly PinnedMount[]> {
  if (spec.mounts.length === 0) return []
  await withStartFailure('mount', 'the mounts could not be made ready', makePinsFolder(folder, settings.uidShift))
  const pinned: PinnedMount[] = []
  for (const [index, one] of spec.mounts.entries()) {
    const target = { pin: join(folder, String(index)), hasOtherMounts: spec.mounts.length > 1 }
    pinned.push(await withMountName(one, pinMount(one, target, { volumes, owner: settings.uidShift, commands })))
  }
  return pinned
}

/**
 * Removes the pins in `folder` after they were unmounted. It can't delete the content of volumes. A pin is an empty folder or
 * file, and the kernel refuses to remove it (`EBUSY`) while something is mounted on it. Succeeds if the folder is missing.
 */
export async function removePins(folder: string): Promise<void> {
  if (!existsSync(folder)) return
  for (const name of await readdir(folder)) {
    const pin = join(folder, name)
    await ((await lstat(pin)).isDirectory() ? rmdir(pin) : unlink(pin))
  }
  await rmdir(folder)
}

/**
 * Turns a rejection of `work` into a `StartError` of reason `mount`, whose message names the mount by its path in the sandbox.
 */
export async function withMountName<T>({ guest }: Mount, work: Promise<T>): Promise<T> {
  const named = `the mount on '${guest}' could not be made`
  const addName = (error: unknown): never => {
    throw error instanceof BlockedPathError ? new BlockedPathError(`${named}: ${error.message}`) : error
  }
  return await withStartFailure('mount', named, work.catch(addName))
}

/**
 * Creates the folder of pins. Only the sandbox's user 0 may enter it, because runtimes open mount sources as that user. No
 * other user of the host can reach a volume through it.
 */
async function makePinsFolder(path: string, owner: number): Promise<void> {
  await mkdir(path, { mode: 0o700 })
  await chown(path, owner, owner)
}

type PinTarget = { readonly pin: string; readonly hasOtherMounts: boolean }
type PinSource = { readonly volumes: RunVolumes; readonly owner: number; readonly commands: CommandRunner }

async function pinMount(spec: Mount, { pin, hasOtherMounts }: PinTarget, source: PinSource): Promise<PinnedMount> {
  const { volumes, owner, commands } = source
  switch (spec.type) {
    case 'named':
      return await pinVolume(spec, { pin, commands }, await volumes.named(spec.name))
    case 'bind':
      return await withBindSource({ root: await volumes.host(), uidShift: owner }, spec.host, (held) =>
        pinHeld(spec, { pin, commands }, held),
      )
    case 'tmpfs':
      if (!hasOtherMounts) return { spec, pin: null, kind: 'folder' }
      await mkdir(pin, { mode: 0o755 })
      await mount(commands, ['-t', 'tmpfs', '-o', 'nosuid,nodev,noexec,mode=755,size=1m', 'tmpfs', pin])
      return { spec, pin, kind: 'folder' }
    case 'disk_image':
      throw new BlockedPathError('disk images are not offered here')
  }
}

type BindTarget = { readonly pin: string; readonly commands: CommandRunner }

async function pinVolume(spec: NamedMount, target: BindTarget, folder: string): Promise<PinnedMount> {
  const held = await openRoot(folder)
  try {
    return await pinHeld(spec, target, held)
  } finally {
    await held.close()
  }
}

async function pinHeld(
  spec: BindMount | NamedMount,
  { pin, commands }: BindTarget,
  held: FileHandle,
): Promise<PinnedMount> {
  const kind = (await held.stat()).isDirectory() ? 'folder' : 'file'
  await (kind === 'folder' ? mkdir(pin, { mode: 0o700 }) : writeFile(pin, '', { flag: 'wx', mode: 0o600 }))
  const options = ['bind', ...mountFlagsOf(spec.options)].join(',')
  // mount(8) gets this process's open descriptor. The path that was opened may point elsewhere by now.
  const source = `/proc/${String(process.pid)}/fd/${String(held.fd)}`
  await mount(commands, ['--no-canonicalize', '-o', options, source, pin])
  return { spec, pin, kind }
}

/**
 * Returns the mount flags of a volume. All flags are explicit, because a bind mount otherwise inherits the flags of the
 * volume's file system. Removing a flag needs CAP_SYS_ADMIN, which no process of a sandbox has. `nodev` is always set: a device
 * file in a volume must not give access to a device of the machine.
 */
export function mountFlagsOf({ readonly, noexec, nosuid }: MountOptions): readonly string[] {
  return [readonly ? 'ro' : 'rw', noexec ? 'noexec' : 'exec', nosuid ? 'nosuid' : 'suid', 'nodev']
}

/**
 * Opens the source of a bind mount on the organization's host volume and calls `use` with it. Creates a missing folder.
 * `resolveBeneath` resolves the path, so no symlink and no concurrent change leads out of the volume. Rejects with
 * `BlockedPathError`.
 */
async function withBindSource<T>(volume: VolumeRoot, host: string, use: (held: FileHandle) => Promise<T>): Promise<T> {
  const parsed = parseVolumePath(host)
  if ('refused' in parsed) throw new BlockedPathError(`'${host}': ${parsed.refused}`)
  await using source = await resolveBindSource(volume, host, parsed.names)
  const stats = await source.found?.handle.stat()
  if (source.found === null || (stats?.isDirectory() !== true && stats?.isFile() !== true))
    throw new BlockedPathError(`'${host}' is neither a folder nor a file`)
  return await use(source.found.handle)
}

async function resolveBindSource(
  volume: VolumeRoot,
  host: string,
  names: readonly string[],
): ReturnType<typeof resolveBeneath> {
  try {
    return await translateErrors(host, () =>
      resolveBeneath(volume, names, { path: host, lastSymlink: 'follow', ifMissing: 'all' }),
    )
  } catch (error) {
    throw error instanceof VolumeFileError ? new BlockedPathError(error.message) : error
  }
}
