import { posix } from 'node:path'
import type { BindMount, NamedMount, SandboxSpec, TmpfsMount } from '../../../../domain/spec/spec.ts'
import { StartError } from '../../../start-error.ts'

/** The folder of the worker's own files in a sandbox. */
const OWN_FOLDER = '/.msb'

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

/** Where a mount is in the sandbox. Throws `StartError` of reason `config` for a mount that a Pod can't have. */
export function mountPathOf({ guest, options }: BindMount | NamedMount | TmpfsMount, field: string): string {
  const path = posix.normalize(guest)
  if (options.noexec) throw new StartError('config', `${field}.noexec: a mount in a Pod always allows to execute files`)
  if (path === '/' || path === OWN_FOLDER || path.startsWith(`${OWN_FOLDER}/`))
    throw new StartError('config', `${field}.guest '${guest}': nothing can be mounted there`)
  return path
}
