import type { SandboxSpec } from './spec.ts'

/** The volumes that a specification uses. */
export type SpecVolumes = {
  /** The volume names of the named mounts, each once. */
  readonly names: readonly string[]
  /** Whether it uses the organization's host volume: by a bind mount, a disk image or a copy. */
  readonly usesHost: boolean
}

/** Finds the volumes that the mounts and patches of a specification use. */
export function volumesUsedBy(spec: Pick<SandboxSpec, 'mounts' | 'patches'>): SpecVolumes {
  const names = spec.mounts.flatMap((mount) => (mount.type === 'named' ? [mount.name] : []))
  const usesHost =
    spec.mounts.some(({ type }) => type === 'bind' || type === 'disk_image') ||
    spec.patches.some(({ type }) => type === 'copy_file' || type === 'copy_dir')
  return { names: [...new Set(names)], usesHost }
}

/** Whether a specification uses any volume. */
export function usesVolumes(spec: Pick<SandboxSpec, 'mounts' | 'patches'>): boolean {
  const { names, usesHost } = volumesUsedBy(spec)
  return usesHost || names.length > 0
}
