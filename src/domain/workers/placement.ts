import type { WorkerId } from '../ids.ts'
import type { StorageReport } from './worker.ts'

/** What a run needs of a worker. */
export type PlacementRequest = {
  readonly vcpus: number
  readonly memory_mib: number
  readonly abilities: readonly string[]
  /** When set, the one worker where it can run. */
  readonly home_worker_id: WorkerId | null
  /** What its volumes need; null: it mounts none. */
  readonly volumes: VolumeNeeds | null
  /** Its image in canonical spelling: of the workers that fit, those that hold it come first. Null: none is preferred. */
  readonly image: string | null
}

/** What the volumes of a run need of its worker. */
export type VolumeNeeds = {
  /** The workers that hold the files of one or more of them. */
  readonly homes: readonly WorkerId[]
  /** Whether one of them is in a storage that workers share. */
  readonly needs_shared: boolean
  /** Whether one of them has a cap, or its organization has one. */
  readonly needs_caps: boolean
}

/** What a worker offers beside capacity. Many workers may have the same profile. */
export type WorkerProfile = {
  readonly abilities: readonly string[]
  readonly storage: Pick<StorageReport, 'is_shared' | 'enforces_caps'> | null
  /** The images that need no pull there, in canonical spelling. */
  readonly images: readonly string[]
}

/** A worker with its free capacity. */
export type PlacementWorker = WorkerProfile & {
  readonly id: WorkerId
  readonly free_vcpus: number
  readonly free_memory_mib: number
}

/** `pack` fills workers one after the other, so that large requests still find capacity; `spread` evens them out. */
export const PLACEMENT_POLICIES = ['pack', 'spread'] as const
export type PlacementPolicy = (typeof PLACEMENT_POLICIES)[number]

/** Whether a worker can reach volumes and enforce their caps. */
export function canReachVolumes(
  { id, storage }: { readonly id: WorkerId; readonly storage: WorkerProfile['storage'] },
  needs: VolumeNeeds,
): boolean {
  return storageSatisfies(storage, needs) && needs.homes.every((home) => home === id)
}

/** The part of `canReachVolumes` that is the same for all workers with such a storage. */
export function storageSatisfies(
  storage: WorkerProfile['storage'],
  needs: Pick<VolumeNeeds, 'needs_shared' | 'needs_caps'>,
): boolean {
  if (storage === null) return false
  if (needs.needs_caps && !storage.enforces_caps) return false
  return storage.is_shared || !needs.needs_shared
}

/** The workers that hold the disk or a volume of a run. Empty: it can run anywhere; several: it can run nowhere. */
export function homeWorkersOf({
  home_worker_id,
  volumes,
}: Pick<PlacementRequest, 'home_worker_id' | 'volumes'>): ReadonlySet<WorkerId> {
  return new Set([...(volumes?.homes ?? []), ...(home_worker_id === null ? [] : [home_worker_id])])
}

/**
 * Whether a run can be placed nowhere, whatever capacity is free: its volumes, or its volumes and its writable layer, are
 * on different workers.
 */
export function hasConflictingHomes(request: Pick<PlacementRequest, 'home_worker_id' | 'volumes'>): boolean {
  return homeWorkersOf(request).size > 1
}
