import type { SandboxSpec } from './spec.ts'

/** The volumes that a specification uses. */
export type SpecVolumes = {
  /** The volume names of the named mounts, each once. */
  readonly names: readonly string[]
  /**
   * Whether the specification uses the organization's default volume. The sources of bind mounts, disk images and copying
   * patches are paths in that volume.
   */
  readonly usesDefault: boolean
}

/** Finds the volumes that the mounts and patches of a specification use. */
export function volumesUsedBy(spec: Pick<SandboxSpec, 'mounts' | 'patches'>): SpecVolumes {
  const names = spec.mounts.flatMap((mount) => (mount.type === 'named' ? [mount.name] : []))
  const usesDefault =
    spec.mounts.some(({ type }) => type === 'bind' || type === 'disk_image') ||
    spec.patches.some(({ type }) => type === 'copy_file' || type === 'copy_dir')
  return { names: [...new Set(names)], usesDefault }
}

/** Whether a specification uses any volume. */
export function usesVolumes(spec: Pick<SandboxSpec, 'mounts' | 'patches'>): boolean {
  const { names, usesDefault } = volumesUsedBy(spec)
  return usesDefault || names.length > 0
}
