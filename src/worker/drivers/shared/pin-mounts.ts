import { existsSync } from 'node:fs'
import { chown, lstat, mkdir, readdir, rmdir, unlink, writeFile, type FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import type {
  BindMount,
  DiskImageMount,
  Mount,
  MountOptions,
  NamedMount,
  TmpfsMount,
} from '../../../domain/spec/spec.ts'
import type { CommandRunner } from '../../../lib/run-command.ts'
import { openRoot } from '../../volumes/descriptors.ts'
import { mount } from '../../mounts.ts'
import type { HostCommands } from '../../processes/system-calls.ts'
import { BlockedPathError } from './root-tree.ts'
import type { RunVolumes } from './run-volumes.ts'
import { withStartFailure } from '../../start-error.ts'
import { VolumeFileError } from '../../../contract/volumes/volume-protocol.ts'
import { parseVolumePath } from '../../../domain/volumes/volume-path.ts'
import { resolveBeneath, type VolumeRoot } from '../../volumes/resolve-beneath.ts'
import { translateErrors } from '../../volumes/file-errors.ts'

/**
 * A mount whose source no sandbox can replace. Sandboxes write to volumes, so a path in a volume may point elsewhere at
 * any time. The driver therefore opens the source once and bind mounts it on a pin, a path that no sandbox can change.
 * The runtime then uses the pin as the mount's source.
 */
export type PinnedMount =
  | { readonly spec: BindMount | NamedMount; readonly pin: string; readonly kind: 'folder' | 'file' }
  /**
   * The runtime creates the tmpfs itself. The pin is an empty tmpfs, used to resolve the targets of mounts inside it. Null if
   * the run has no other mounts.
   */
  | { readonly spec: TmpfsMount; readonly pin: string | null; readonly kind: 'folder' }
  /** The pin has the file system of the image. Only the sandbox may enter it. */
  | { readonly spec: DiskImageMount; readonly pin: string; readonly kind: 'folder' }

/** Bind mounts a path on a pin with mount flags as mount(8) names them. */
type BindPin = (source: string, pin: string, flags: readonly string[]) => Promise<void>

/**
 * Makes a pin, and mounts there what a disk image has: its file system, or its raw disk. `source` is the path of the image's open
 * descriptor.
 */
export type MountDiskImage = (spec: DiskImageMount, source: string, pin: string) => Promise<void>

/**
 * Calls `pin`, which opens and pins the source of a bind mount in the volume with the folder `root`, and limits the folder. `pin` calls
 * `limit` with the open source.
 */
export type LimitFolder = <T>(
  spec: BindMount,
  root: string,
  pin: (limit: (held: FileHandle) => Promise<void>) => Promise<T>,
) => Promise<T>

/** Mounts an open folder of a volume on a pin with `stat_virtualization: off`. */
export type MountHostStat = (spec: BindMount | NamedMount, source: string, pin: string) => Promise<void>

/** Whether a server shows the mount to the sandbox. The worker can't look into its pin. */
export function isServed(spec: Mount): boolean {
  return spec.type === 'disk_image' || ('stat_virtualization' in spec && spec.stat_virtualization === 'off')
}

/** Returns bind mounts that show the owners of files as they are on disk. */
export function bindByMount(commands: CommandRunner): BindPin {
  return async (source, pin, flags) => {
    await mount(commands, ['--no-canonicalize', '-o', ['bind', ...flags].join(','), source, pin])
  }
}

/** Returns bind mounts that show the owners of files by the map of a user namespace. */
export function bindIdmapped(commands: Pick<HostCommands, 'callSystem'>, mapPath: string): BindPin {
  return async (source, pin, flags) => {
    const set = sumOfFlags((flag) => flags.includes(flag))
    const clear = sumOfFlags((flag) => !flags.includes(flag))
    await commands.callSystem(['pin', source, pin, mapPath, String(set), String(clear)])
  }
}

/** The mount flags by their numbers for mount_setattr(2). */
const MOUNT_ATTRIBUTES = { ro: 1, nosuid: 2, nodev: 4, noexec: 8 } as const

function sumOfFlags(isWanted: (flag: string) => boolean): number {
  const wanted = Object.entries(MOUNT_ATTRIBUTES).filter(([flag]) => isWanted(flag))
  return wanted.reduce((sum, [, number]) => sum + number, 0)
}

type PinDeps = {
  readonly volumes: RunVolumes
  /** The id on disk of the sandboxes' user 0, who owns new folders in volumes. */
  readonly storedShift: number
  readonly commands: CommandRunner
}

type Pins = {
  /** The folder of the pins. It must not exist. */
  readonly folder: string
  /** The host's user who may enter the folder. */
  readonly owner: number
  readonly bind: BindPin
  /** Null if the driver can't mount disk images. */
  readonly mountDiskImage: MountDiskImage | null
  /** Null if the driver can't refuse changes of owners. */
  readonly mountHostStat: MountHostStat | null
  /** Null if the runtime limits the folders. */
  readonly limitFolder: LimitFolder | null
}

/** Creates the folder of pins and pins every mount there. Rejects with `StartError` of reason `mount`, which names the mount. */
export async function pinMounts(
  deps: PinDeps,
  mounts: readonly Mount[],
  { folder, owner, ...ways }: Pins,
): Promise<readonly PinnedMount[]> {
  if (mounts.length === 0) return []
  await withStartFailure('mount', 'the mounts could not be made ready', makePinsFolder(folder, owner))
  const pinned: PinnedMount[] = []
  for (const [index, one] of quotasFirst(mounts)) {
    const target = { ...ways, pin: join(folder, String(index)), hasOtherMounts: mounts.length > 1 }
    pinned[index] = await withMountName(one, pinMount(one, target, deps))
  }
  return pinned
}

/** Orders mounts with their indexes. A folder gets its first quota only while no folder around it is mounted. */
function quotasFirst(mounts: readonly Mount[]): readonly (readonly [number, Mount])[] {
  const hasQuota = (mount: Mount): boolean => mount.type === 'bind' && mount.quota_mib !== null
  return [...mounts.entries()].toSorted(([, a], [, b]) => Number(hasQuota(b)) - Number(hasQuota(a)))
}

/**
 * Removes the pins in `folder` after they were unmounted. A pin is an empty folder or file. If something is still
 * mounted on it, the kernel refuses to remove it (`EBUSY`), so the content of volumes can't be deleted. Succeeds if the
 * folder is missing.
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

type BindTarget = { readonly pin: string } & Pick<Pins, 'bind' | 'mountHostStat'>
type PinTarget = BindTarget & Pick<Pins, 'mountDiskImage' | 'limitFolder'> & { readonly hasOtherMounts: boolean }

async function pinMount(spec: Mount, target: PinTarget, deps: PinDeps): Promise<PinnedMount> {
  const { pin } = target
  const { volumes, storedShift, commands } = deps
  switch (spec.type) {
    case 'named':
      return await pinVolume(spec, target, await volumes.named(spec.name))
    case 'bind':
      return await pinBind(spec, target, { root: await volumes.default(), uidShift: storedShift, ifMissing: 'all' })
    case 'tmpfs':
      if (!target.hasOtherMounts) return { spec, pin: null, kind: 'folder' }
      await mkdir(pin, { mode: 0o755 })
      await mount(commands, ['-t', 'tmpfs', '-o', 'nosuid,nodev,noexec,mode=755,size=1m', 'tmpfs', pin])
      return { spec, pin, kind: 'folder' }
    case 'disk_image': {
      const root: BindRoot = { root: await volumes.default(), uidShift: storedShift, ifMissing: 'refuse' }
      return await volumes.using(() => withBindSource(root, spec.host, (held) => pinDiskImage(spec, target, held)))
    }
  }
}

async function pinVolume(spec: NamedMount, target: BindTarget, folder: string): Promise<PinnedMount> {
  const held = await openRoot(folder)
  try {
    return await pinHeld(spec, target, held)
  } finally {
    await held.close()
  }
}

async function pinBind(spec: BindMount, target: PinTarget, root: BindRoot): Promise<PinnedMount> {
  if (target.limitFolder === null) return await withBindSource(root, spec.host, (held) => pinHeld(spec, target, held))
  return await target.limitFolder(spec, root.root, (limit) =>
    withBindSource(root, spec.host, async (held) => {
      await limit(held)
      return await pinHeld(spec, target, held)
    }),
  )
}

async function pinHeld(
  spec: BindMount | NamedMount,
  { pin, bind, mountHostStat }: BindTarget,
  held: FileHandle,
): Promise<PinnedMount> {
  const kind = (await held.stat()).isDirectory() ? 'folder' : 'file'
  await (kind === 'folder' ? mkdir(pin, { mode: 0o700 }) : writeFile(pin, '', { flag: 'wx', mode: 0o600 }))
  if (!isServed(spec)) await bind(descriptorOfWorker(held), pin, mountFlagsOf(spec.options))
  else if (kind === 'file' || mountHostStat === null)
    throw new BlockedPathError("'stat_virtualization: off' is possible for folders only")
  else await mountHostStat(spec, descriptorOfWorker(held), pin)
  return { spec, pin, kind }
}

async function pinDiskImage(
  spec: DiskImageMount,
  { pin, mountDiskImage }: PinTarget,
  held: FileHandle,
): Promise<PinnedMount> {
  if (mountDiskImage === null) throw new BlockedPathError('this worker does not support disk images')
  if (!(await held.stat()).isFile()) throw new BlockedPathError(`'${spec.host}' is not a file`)
  await mountDiskImage(spec, descriptorOfWorker(held), pin)
  return { spec, pin, kind: 'folder' }
}

/** The source of a mount is this process's open descriptor, because the path that was opened may point elsewhere by now. */
function descriptorOfWorker({ fd }: FileHandle): string {
  return `/proc/${String(process.pid)}/fd/${String(fd)}`
}

/**
 * Returns the mount flags of a volume. All flags are explicit, because a bind mount otherwise inherits the flags of the
 * volume's file system. No process of a sandbox can remove a flag, because that needs CAP_SYS_ADMIN. `nodev` is always
 * set: a device file in a volume must not give access to a device of the machine.
 */
export function mountFlagsOf({ readonly, noexec, nosuid }: MountOptions): readonly string[] {
  return [readonly ? 'ro' : 'rw', noexec ? 'noexec' : 'exec', nosuid ? 'nosuid' : 'suid', 'nodev']
}

type BindRoot = VolumeRoot & { readonly ifMissing: 'all' | 'refuse' }

/**
 * Opens the source of a mount on the organization's default volume and calls `use` with it. May create a missing folder.
 * `resolveBeneath` resolves the path, so no symlink and no concurrent change leads out of the volume. Rejects
 * with `BlockedPathError`.
 */
async function withBindSource<T>(volume: BindRoot, host: string, use: (held: FileHandle) => Promise<T>): Promise<T> {
  const parsed = parseVolumePath(host)
  if ('refused' in parsed) throw new BlockedPathError(`'${host}': ${parsed.refused}`)
  await using source = await resolveBindSource(volume, host, parsed.names)
  const stats = await source.found?.handle.stat()
  if (source.found === null || (stats?.isDirectory() !== true && stats?.isFile() !== true))
    throw new BlockedPathError(`'${host}' is neither a folder nor a file`)
  return await use(source.found.handle)
}

async function resolveBindSource(
  { ifMissing, ...volume }: BindRoot,
  host: string,
  names: readonly string[],
): ReturnType<typeof resolveBeneath> {
  try {
    return await translateErrors(host, () =>
      resolveBeneath(volume, names, { path: host, lastSymlink: 'follow', ifMissing }),
    )
  } catch (error) {
    throw error instanceof VolumeFileError ? new BlockedPathError(error.message) : error
  }
}
