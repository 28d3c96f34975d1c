import type { OrgId, WorkerId } from '../ids.ts'
import type { Capacity, StorageReport } from './worker.ts'

/** The most that a worker may claim, as the operator decided with its join token. Null in a field: no bound. */
export type WorkerBounds = {
  readonly max_vcpus: number | null
  readonly max_memory_mib: number | null
  readonly max_disk_mib: number | null
  /** Whether it may serve the volumes of a shared storage, which belong to all organizations. */
  readonly shared_volumes: boolean
  /** The organizations whose sandboxes and volumes it may get. Null: all. */
  readonly org_ids: readonly OrgId[] | null
}

/** What bounds a worker that nobody has bounded: it may claim any size, and serves no shared storage. */
export const UNBOUNDED: WorkerBounds = {
  max_vcpus: null,
  max_memory_mib: null,
  max_disk_mib: null,
  shared_volumes: false,
  org_ids: null,
}

/** The worker of a credential. Its bounds never change: it gets others only if it joins as a new worker. */
export type AuthenticatedWorker = { readonly id: WorkerId; readonly bounds: WorkerBounds | null }

type Claims = { readonly capacity: Capacity; readonly storage: StorageReport }

/**
 * Limits a worker's claims to its bounds. `refused_claims` describes for operators what was refused, or is null. Null
 * bounds limit nothing: the local worker has none, and neither has a worker that joined before bounds existed.
 */
export function limitClaims(
  { capacity, storage }: Claims,
  bounds: WorkerBounds | null,
): Claims & { readonly refused_claims: string | null } {
  if (bounds === null) return { capacity, storage, refused_claims: null }
  const refused: string[] = []
  const limit = (claimed: number, max: number | null, unit: string): number => {
    if (max === null || claimed <= max) return claimed
    refused.push(`${String(claimed)} ${unit}, of which ${String(max)} are allowed`)
    return max
  }
  const limitDisk = (claimed: number | null): number | null => {
    if (claimed !== null) return limit(claimed, bounds.max_disk_mib, 'MiB of disk')
    if (bounds.max_disk_mib !== null)
      refused.push(`disk without a limit, of which ${String(bounds.max_disk_mib)} MiB are allowed`)
    return bounds.max_disk_mib
  }
  const limited = {
    vcpus: limit(capacity.vcpus, bounds.max_vcpus, 'vCPUs'),
    memory_mib: limit(capacity.memory_mib, bounds.max_memory_mib, 'MiB of memory'),
    disk_mib: limitDisk(capacity.disk_mib),
  }
  const is_shared = storage.is_shared && bounds.shared_volumes
  if (is_shared !== storage.is_shared) refused.push('shared volumes')
  return {
    capacity: limited,
    storage: { ...storage, is_shared },
    refused_claims: refused.length === 0 ? null : refused.join('; '),
  }
}

/** Whether a worker may get the sandboxes and volumes of an organization. */
export function mayServeOrg({ org_ids }: Pick<WorkerBounds, 'org_ids'>, org_id: OrgId): boolean {
  return org_ids === null || org_ids.includes(org_id)
}
