import { lstat, mkdir, readdir, rm, rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import type { SandboxId } from '../../../domain/ids.ts'
import type { Mount, Patch } from '../../../domain/spec/spec.ts'
import { localCommands } from '../../../lib/run-command.ts'
import { unmountBelow } from '../../mounts.ts'
import { applyPatches } from '../shared/patches.ts'
import { pinMounts, removePins } from '../shared/pin-mounts.ts'
import { openRunVolumes } from '../shared/run-volumes.ts'
import type { VmContext } from './context.ts'

type MountContext = Pick<VmContext, 'dir' | 'settings' | 'volumes' | 'clock'>

/** The folder of all pinned mounts: one folder for each sandbox, with its pins in `pins`. */
function mountsFolder({ dir }: Pick<VmContext, 'dir'>): string {
  return join(dir, 'mounts')
}

/**
 * Holds every volume that a run mounts in a place that no sandbox can change, and answers these by the mount's index.
 * The place is the sandbox's own for all its runs, because the runtime keeps it with the disk. A volume counts as mounted
 * on this machine for as long, and so is not deleted. Rejects with `StartError` of kind mount.
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
  const spec = { ...desired.spec, mounts: indexed.map(({ mount }) => writable(mount)) }
  const pinned = await pinMounts(
    { ...context, commands: localCommands },
    { ...desired, spec },
    { volumes, folder: join(folder, 'pins') },
  )
  return new Map(pinned.flatMap(({ pin }, at) => (pin === null ? [] : [[indexed[at]?.index ?? at, pin] as const])))
}

/** The runtime tries an attribute on every folder that it shares, and itself lets no guest write to a readonly one. */
function writable(mount: Mount): Mount {
  return { ...mount, options: { ...mount.options, readonly: false } }
}

/** Lets go of what `pinMountSources` held, in whatever state; nothing of a volume can be deleted by it. */
export async function unpinMountSources(context: Pick<VmContext, 'dir' | 'clock'>, sandbox: SandboxId): Promise<void> {
  const folder = join(mountsFolder(context), sandbox)
  if ((await lstatOrNull(folder)) === null) return
  await unmountBelow(folder, { clock: context.clock, commands: localCommands })
  await removePins(join(folder, 'pins'))
  await rmdir(folder)
}

/** Sandboxes for which something is held. */
export async function listPinnedSandboxes(context: Pick<VmContext, 'dir'>): Promise<readonly string[]> {
  await mkdir(mountsFolder(context), { recursive: true, mode: 0o700 })
  return await readdir(mountsFolder(context))
}

/**
 * Copies what patches bring from the organization's host volume into a folder, and answers the copies by the patch's
 * index: sandboxes may change the volume meanwhile, and the runtime would follow their symlinks into this machine.
 * Rejects with `StartError` of kind patch.
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
 * Whether a working folder is to be made because no layer of the image has it. Behind a symlink of the image the answer
 * is no: where that leads only the guest knows, and the runtime refuses a folder that is missing there.
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

async function lstatOrNull(path: string): Promise<Awaited<ReturnType<typeof lstat>> | null> {
  try {
    return await lstat(path)
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : null
    if (code === 'ENOENT' || code === 'ENOTDIR') return null
    throw error
  }
}
