import { mkdir, readdir, rm, rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import type { SandboxId } from '../../../domain/ids.ts'
import type { Mount, Patch } from '../../../domain/spec/spec.ts'
import { lstatOrNull } from '../../../lib/files.ts'
import { localCommands } from '../../../lib/run-command.ts'
import { unmountBelow } from '../../mounts.ts'
import { applyPatches } from '../shared/patches.ts'
import { bindByMount, pinMounts, removePins } from '../shared/pin-mounts.ts'
import { openRunVolumes } from '../shared/run-volumes.ts'
import type { VmContext } from './context.ts'
import { endDiskServers, makeDiskMounter, makeHostStatMounter } from './disk-images.ts'

type MountContext = Pick<VmContext, 'dir' | 'settings' | 'volumes' | 'clock'>

/** Returns the folder of all pinned mounts. It contains a folder for each sandbox, whose pins are in `pins`. */
function mountsFolder({ dir }: Pick<VmContext, 'dir'>): string {
  return join(dir, 'mounts')
}

/**
 * Pins every volume that a run mounts (see `PinnedMount`), and returns the paths of the pins by the mount's index. All runs of
 * a sandbox use the same paths, because the runtime stores them with the disk. A pinned volume counts as mounted, so it can't
 * be deleted. Rejects with `StartError` of reason `mount`.
 */
export async function pinMountSources(
  context: MountContext,
  desired: DesiredRun,
): Promise<ReadonlyMap<number, string>> {
  const indexed = desired.spec.mounts.flatMap((mount, index) => (mount.type === 'tmpfs' ? [] : [{ mount, index }]))
  if (indexed.length === 0) return new Map()
  const folder = join(mountsFolder(context), desired.sandbox_id)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const volumes = openRunVolumes(context.volumes, desired)
  const storedShift = context.settings.uidShift
  const pinned = await pinMounts(
    { volumes, storedShift, commands: localCommands },
    indexed.map(({ mount }) => withoutReadonly(mount)),
    {
      folder: join(folder, 'pins'),
      owner: storedShift,
      bind: bindByMount(localCommands),
      mountDiskImage: makeDiskMounter(storedShift, desired.sandbox_id),
      mountHostStat: makeHostStatMounter(storedShift),
      limitFolder: null,
    },
  )
  return new Map(pinned.flatMap(({ pin }, at) => (pin === null ? [] : [[indexed[at]?.index ?? at, pin] as const])))
}

/**
 * Makes the pin of a readonly mount writable, because the runtime writes a test attribute to every folder that it shares. The
 * runtime itself prevents guests from writing to readonly mounts.
 */
function withoutReadonly(mount: Mount): Mount {
  if (mount.type === 'disk_image') return mount
  return { ...mount, options: { ...mount.options, readonly: false } }
}

/** Removes a sandbox's pins, including pins of an interrupted start. The content of volumes stays. May be repeated. */
export async function unpinMountSources(context: Pick<VmContext, 'dir' | 'clock'>, sandbox: SandboxId): Promise<void> {
  const folder = join(mountsFolder(context), sandbox)
  if ((await lstatOrNull(folder)) === null) return
  await unmountBelow(folder, { clock: context.clock, commands: localCommands })
  await endDiskServers(sandbox, context.clock)
  await removePins(join(folder, 'pins'))
  await rmdir(folder)
}

/** Lists the sandboxes that have pins. */
export async function listPinnedSandboxes(context: Pick<VmContext, 'dir'>): Promise<readonly string[]> {
  await mkdir(mountsFolder(context), { recursive: true, mode: 0o700 })
  return await readdir(mountsFolder(context))
}

/**
 * Copies the sources of patches from the organization's default volume into `folder`. Returns the paths of the copies
 * by the patch's index. The runtime must not read the volume itself: a sandbox may change the volume, and the runtime
 * would follow symlinks to files of this machine. Rejects with `StartError` of reason `patch`.
 */
export async function copyPatchSources(
  context: MountContext,
  desired: DesiredRun,
  folder: string,
): Promise<ReadonlyMap<number, string>> {
  const copied = desired.spec.patches.flatMap((patch, index) => (isCopyPatch(patch) ? [{ patch, index }] : []))
  if (copied.length === 0) return new Map()
  await rm(folder, { recursive: true, force: true })
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const volumes = openRunVolumes(context.volumes, desired)
  const copies = copied.map(({ patch, index }): Patch => ({ ...patch, dst: `/${String(index)}`, replace: false }))
  await applyPatches({ root: folder, owner: 0 }, copies, volumes)
  return new Map(copied.map(({ index }) => [index, join(folder, String(index))]))
}

type CopyPatch = Extract<Patch, { type: 'copy_file' | 'copy_dir' }>

function isCopyPatch(patch: Patch): patch is CopyPatch {
  return patch.type === 'copy_file' || patch.type === 'copy_dir'
}

/**
 * Whether a folder exists in no layer of an image. Returns false if a part of the path is a symlink in the image. Only the
 * guest can resolve that symlink, and the runtime refuses a working folder that is missing in the guest.
 */
export async function isFolderMissing(layers: readonly string[], path: string): Promise<boolean> {
  const parts = path.split('/').filter((part) => part !== '')
  if (parts.length === 0 || parts.includes('..')) return false
  for (const layer of layers) {
    for (let depth = 1; depth <= parts.length; depth++) {
      const found = await lstatOrNull(join(layer, ...parts.slice(0, depth)))
      if (found === null) break
      if (depth === parts.length || !found.isDirectory()) return false
    }
  }
  return true
}

/** The first of these paths that a layer of an image has as a file. Null if no layer has any. */
export async function findInLayers(layers: readonly string[], paths: readonly string[]): Promise<string | null> {
  for (const path of paths)
    for (const layer of layers) if ((await lstatOrNull(join(layer, path)))?.isFile() === true) return path
  return null
}
