import { existsSync } from 'node:fs'
import type { Ability } from '../../../../domain/abilities.ts'
import { readFileSyncOrNull } from '../../../../lib/files.ts'
import { findMissingPrograms } from '../../shared/machine.ts'
import type { MappingFlaws } from '../users/mapping-flaws.ts'
import type { RuntimeName } from './runtime.ts'

const PACKAGES: Readonly<Record<string, string>> = { fuse2fs: 'fuse2fs', e2fsck: 'e2fsprogs' }

/** Lists what this machine lacks to mount raw disk images. */
export function findMissingForDiskImages(): readonly string[] {
  const hasFuse = existsSync('/dev/fuse') || /^(nodev)?\tfuse$/m.test(readFileSyncOrNull('/proc/filesystems') ?? '')
  return [...missingPrograms(PACKAGES), ...(hasFuse ? [] : ['the kernel has no FUSE (module fuse)'])]
}

/** Lists what this machine lacks to mount disk images in the formats qcow2 and vmdk, besides what raw images need. */
export function findMissingForImageFormats(): readonly string[] {
  return missingPrograms({ 'qemu-storage-daemon': 'qemu-utils, in Debian 12 qemu-system-common' })
}

/**
 * Describes why a runtime's sandboxes can't mount disk images. Null if they can. The mount belongs to the sandbox's user
 * namespace, so the runtime has to join one. The image is shown to its server by an idmapped mount.
 */
export function describeImageFlaw(runtime: RuntimeName, { volumes }: Pick<MappingFlaws, 'volumes'>): string | null {
  if (runtime !== 'crun' && runtime !== 'runc') return `${runtime} can't mount them; crun and runc can`
  return volumes === null ? null : `files of volumes can't be idmapped here: ${volumes}`
}

/** Lists the abilities that this machine lacks. `flaw` is what `describeImageFlaw` returned. */
export function findLackingImageAbilities(flaw: string | null): readonly Ability[] {
  if (flaw !== null || findMissingForDiskImages().length > 0) return ['disk_images', 'disk_image_formats']
  return findMissingForImageFormats().length > 0 ? ['disk_image_formats'] : []
}

function missingPrograms(packages: Readonly<Record<string, string>>): readonly string[] {
  return findMissingPrograms(Object.keys(packages)).map(
    (name) => `the program '${name}' is missing (package ${packages[name] ?? name})`,
  )
}
