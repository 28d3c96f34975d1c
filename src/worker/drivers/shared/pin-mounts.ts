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
 * A mount whose content the host holds in place. What a volume's paths lead to can change at any time, as sandboxes
 * write there; so the source is opened once, and bound to a place that no sandbox can change. The runtime mounts that.
 */
export type PinnedMount =
  | { readonly spec: BindMount | NamedMount; readonly pin: string; readonly kind: 'folder' | 'file' }
  /** The runtime makes the file system itself. The pin is an empty one in which targets beneath are worked out; null: none are. */
  | { readonly spec: TmpfsMount; readonly pin: string | null; readonly kind: 'folder' }

/** Pins every mount of a run in `folder`. Rejects with `StartError` of kind mount, which names the mount. */
export async function pinMounts(
  { settings, commands }: { readonly settings: { readonly uidShift: number }; readonly commands: CommandRunner },
  { spec }: DesiredRun,
  { volumes, folder }: { readonly volumes: RunVolumes; readonly folder: string },
): Promise<readonly PinnedMount[]> {
  if (spec.mounts.length === 0) return []
  await withStartFailure('mount', 'the mounts could not be made ready', makePinsFolder(folder, settings.uidShift))
  const pinned: PinnedMount[] = []
  for (const [index, one] of spec.mounts.entries()) {
    const at = { pin: join(folder, String(index)), hasCompany: spec.mounts.length > 1 }
    pinned.push(await withMountName(one, pinMount(one, at, { volumes, owner: settings.uidShift, commands })))
  }
  return pinned
}

/**
 * Removes the places of pins that were unmounted. What is still mounted on one can't be deleted by it: only empty
 * folders go, and the empty files that others were bound over, and the kernel lets neither go (`EBUSY`) while something
 * is mounted there. A folder that is not there succeeds.
 */
export async function removePins(folder: string): Promise<void> {
  if (!existsSync(folder)) return
  for (const name of await readdir(folder)) {
    const pin = join(folder, name)
    await ((await lstat(pin)).isDirectory() ? rmdir(pin) : unlink(pin))
  }
  await rmdir(folder)
}

/** Makes a failure one of kind mount whose text names the mount by its path in the sandbox. */
export async function withMountName<T>({ guest }: Mount, work: Promise<T>): Promise<T> {
  const named = `the mount on '${guest}' could not be made`
  const inWords = (error: unknown): never => {
    throw error instanceof BlockedPathError ? new BlockedPathError(`${named}: ${error.message}`) : error
  }
  return await withStartFailure('mount', named, work.catch(inWords))
}

/** For the sandbox's user 0 alone, as which runtimes open what they mount: no other user of the host gets to a volume. */
async function makePinsFolder(path: string, owner: number): Promise<void> {
  await mkdir(path, { mode: 0o700 })
  await chown(path, owner, owner)
}

type Place = { readonly pin: string; readonly hasCompany: boolean }
type Source = { readonly volumes: RunVolumes; readonly owner: number; readonly commands: CommandRunner }

async function pinMount(spec: Mount, { pin, hasCompany }: Place, source: Source): Promise<PinnedMount> {
  const { volumes, owner, commands } = source
  switch (spec.type) {
    case 'named':
      return await pinVolume(spec, { pin, commands }, await volumes.named(spec.name))
    case 'bind':
      return await withBindSource({ root: await volumes.host(), uidShift: owner }, spec.host, (held) =>
        pinHeld(spec, { pin, commands }, held),
      )
    case 'tmpfs':
      if (!hasCompany) return { spec, pin: null, kind: 'folder' }
      await mkdir(pin, { mode: 0o755 })
      await mount(commands, ['-t', 'tmpfs', '-o', 'nosuid,nodev,noexec,mode=755,size=1m', 'tmpfs', pin])
      return { spec, pin, kind: 'folder' }
    case 'disk_image':
      throw new BlockedPathError('disk images are not offered here')
  }
}

type Where = { readonly pin: string; readonly commands: CommandRunner }

async function pinVolume(spec: NamedMount, where: Where, folder: string): Promise<PinnedMount> {
  const held = await openRoot(folder)
  try {
    return await pinHeld(spec, where, held)
  } finally {
    await held.close()
  }
}

async function pinHeld(spec: BindMount | NamedMount, { pin, commands }: Where, held: FileHandle): Promise<PinnedMount> {
  const kind = (await held.stat()).isDirectory() ? 'folder' : 'file'
  await (kind === 'folder' ? mkdir(pin, { mode: 0o700 }) : writeFile(pin, '', { flag: 'wx', mode: 0o600 }))
  const options = ['bind', ...mountFlags(spec.options)].join(',')
  // The program follows the descriptor of this process, and not the name behind it, to what was opened.
  const source = `/proc/${String(process.pid)}/fd/${String(held.fd)}`
  await mount(commands, ['--no-canonicalize', '-o', options, source, pin])
  return { spec, pin, kind }
}

/**
 * The flags of a volume's mount, all of them said, because a bind otherwise has those of the file system that the
 * volume lies on. Who could take one back would need CAP_SYS_ADMIN, which no process of a sandbox can have. `nodev`
 * holds always, as no device file of a volume may stand for a device of the machine.
 */
export function mountFlags({ readonly, noexec, nosuid }: MountOptions): readonly string[] {
  return [readonly ? 'ro' : 'rw', noexec ? 'noexec' : 'exec', nosuid ? 'nosuid' : 'suid', 'nodev']
}

/**
 * Calls back with what a bind mount names on its organization's host volume: a folder, made when it is not there, or a
 * file. It is held by a descriptor that was reached step by step beneath the volume's root, so that no symlink and no
 * change meanwhile leads out of it. Rejects with `BlockedPathError`, in words for the sandbox's owner.
 */
export async function withBindSource<T>(
  volume: VolumeRoot,
  host: string,
  use: (held: FileHandle) => Promise<T>,
): Promise<T> {
  const parsed = parseVolumePath(host)
  if ('refused' in parsed) throw new BlockedPathError(`'${host}': ${parsed.refused}`)
  await using place = await reach(volume, host, parsed.names)
  const stats = await place.found?.handle.stat()
  if (place.found === null || (stats?.isDirectory() !== true && stats?.isFile() !== true))
    throw new BlockedPathError(`'${host}' is neither a folder nor a file`)
  return await use(place.found.handle)
}

async function reach(volume: VolumeRoot, host: string, names: readonly string[]): ReturnType<typeof resolveBeneath> {
  try {
    return await translateErrors(host, () =>
      resolveBeneath(volume, names, { path: host, lastSymlink: 'follow', ifMissing: 'all' }),
    )
  } catch (error) {
    throw error instanceof VolumeFileError ? new BlockedPathError(error.message) : error
  }
}
