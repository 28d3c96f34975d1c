import type { Ability } from '../../../../domain/abilities.ts'
import type { CommandRunner } from '../../../../lib/run-command.ts'
import { DISK_IMAGE_SCRIPT } from '../../shared/disk-image-script.ts'
import { findMissingPrograms } from '../../shared/machine.ts'
import type { MappingFlaws } from '../users/mapping-flaws.ts'
import type { RuntimeName } from './runtime/runtime.ts'

const TRIAL_TIMEOUT_MS = 20_000

/** Lists the programs that this machine lacks to mount raw disk images. */
export function findMissingForDiskImages(): readonly string[] {
  return missingPrograms({ fuse2fs: 'fuse2fs', e2fsck: 'e2fsprogs' })
}

/** Lists the programs that it lacks for the formats qcow2 and vmdk, besides those for raw images. */
export function findMissingForImageFormats(): readonly string[] {
  return missingPrograms({ 'qemu-storage-daemon': 'qemu-utils, in Debian 12 qemu-system-common' })
}

/** Lists the programs that it lacks to show the metadata that files have on the machine. */
export function findMissingForHostStat(): readonly string[] {
  return missingPrograms({ bindfs: 'bindfs' })
}

/**
 * Describes why a runtime's sandboxes can't mount disk images, or folders with the machine's metadata. Null if they
 * can. The mount belongs to the sandbox's user namespace, so the runtime has to join one. The image is shown to its
 * server by an idmapped mount.
 */
export function describeImageFlaw(runtime: RuntimeName, { volumes }: Pick<MappingFlaws, 'volumes'>): string | null {
  if (runtime !== 'crun' && runtime !== 'runc') return `${runtime} can't mount them; crun and runc can`
  return volumes === null ? null : `files of volumes can't be idmapped here: ${volumes}`
}

/** Tries to mount FUSE in a user namespace. Returns why that is impossible, or null. It takes 40 ms (2026-11). */
export async function tryFuse(commands: Pick<CommandRunner, 'attempt'>): Promise<string | null> {
  const { code, stderr } = await commands.attempt('perl', [DISK_IMAGE_SCRIPT, 'try'], { timeoutMs: TRIAL_TIMEOUT_MS })
  return code === 0 ? null : `FUSE can't be mounted in a user namespace here: ${stderr.trim()}`
}

/** Lists the abilities that this machine lacks. `flaw` is what `describeImageFlaw` or `tryFuse` returned. */
export function findLackingImageAbilities(flaw: string | null): readonly Ability[] {
  if (flaw !== null) return ['disk_images', 'disk_image_formats', 'raw_stat']
  const hostStat: readonly Ability[] = findMissingForHostStat().length > 0 ? ['raw_stat'] : []
  if (findMissingForDiskImages().length > 0) return ['disk_images', 'disk_image_formats', ...hostStat]
  return findMissingForImageFormats().length > 0 ? ['disk_image_formats', ...hostStat] : hostStat
}

function missingPrograms(packages: Readonly<Record<string, string>>): readonly string[] {
  return findMissingPrograms(Object.keys(packages)).map(
    (name) => `the program '${name}' is missing (package ${packages[name] ?? name})`,
  )
}
