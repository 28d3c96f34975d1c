import type { SandboxSpec } from '../../../../domain/spec/spec.ts'
import { mountPathOf } from './mount-paths.ts'

/**
 * The volumes in memory of a Pod, and their mounts, one for each `tmpfs` of the spec. They count against the memory of the sandbox. Its
 * processes have no capabilities and gain none, so `nosuid` and `nodev` always hold. Throws `StartError` of reason `config` for what a
 * Pod can't have.
 */
export function tmpfsOf({ mounts, resources }: SandboxSpec): {
  readonly volumes: readonly object[]
  readonly volumeMounts: readonly object[]
} {
  const found = mounts.flatMap((mount, index) => {
    if (mount.type !== 'tmpfs') return []
    const mountPath = mountPathOf(mount, `mounts[${String(index)}]`)
    const sizeMib = mount.size_mib ?? Math.max(1, Math.floor(resources.memory_mib / 2))
    const name = `tmpfs-${String(index)}`
    return [
      {
        volume: { name, emptyDir: { medium: 'Memory', sizeLimit: `${String(sizeMib)}Mi` } },
        mount: { name, mountPath, readOnly: mount.options.readonly },
      },
    ]
  })
  return { volumes: found.map(({ volume }) => volume), volumeMounts: found.map(({ mount }) => mount) }
}
