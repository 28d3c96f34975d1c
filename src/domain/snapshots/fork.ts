import type { SandboxSpec } from '../spec/spec.ts'
import type { Snapshot } from './snapshot.ts'

/** The maximum number of copies of one fork. */
export const FORKS_MAX = 100
const BYTES_PER_MIB = 1024 * 1024

/** The specification and the origin of a sandbox whose disk is made from a snapshot. Patches are in the snapshot already. */
export function restoring(spec: SandboxSpec, { id, worker_id, disk_bytes }: Snapshot) {
  const resources = { ...spec.resources, disk_size_mib: Math.ceil((disk_bytes ?? 0) / BYTES_PER_MIB) }
  return { spec: { ...spec, resources, patches: [], snapshot_id: id }, origin: { id, worker_id } }
}

/** The names of copies. Null: a name is generated for each. */
export function forkNames(name: string | null, count: number): readonly (string | null)[] {
  if (name === null || count === 1) return Array.from({ length: count }, () => name)
  return Array.from({ length: count }, (_, n) => `${name}-${String(n + 1)}`)
}
