import type { SandboxSpec } from './spec.ts'

/** The volumes that a specification reaches. */
export type SpecVolumes = {
  /** Of its named mounts, each once. */
  readonly names: readonly string[]
  /** Whether it reaches into the organization's host volume: by a bind mount, a disk image or a copy from it. */
  readonly usesHost: boolean
}

export function volumesUsedBy(spec: Pick<SandboxSpec, 'mounts' | 'patches'>): SpecVolumes {
  const names = spec.mounts.flatMap((mount) => (mount.type === 'named' ? [mount.name] : []))
  const usesHost =
    spec.mounts.some(({ type }) => type === 'bind' || type === 'disk_image') ||
    spec.patches.some(({ type }) => type === 'copy_file' || type === 'copy_dir')
  return { names: [...new Set(names)], usesHost }
}

/** Whether it reaches any. */
export function usesVolumes(spec: Pick<SandboxSpec, 'mounts' | 'patches'>): boolean {
  const { names, usesHost } = volumesUsedBy(spec)
  return usesHost || names.length > 0
}
