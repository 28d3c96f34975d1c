import type { OrgId, WorkerId } from '../ids.ts'
import type { PublishedPort } from '../spec/published-ports.ts'
import type { Publishing } from './publishing.ts'
import type { StorageReport } from './worker.ts'

/** The needs of a run on a worker. */
export type PlacementRequest = {
  readonly org_id: OrgId
  readonly vcpus: number
  readonly memory_mib: number
  /** The size of the sandbox's disk. Null: the worker's default size. */
  readonly disk_mib: number | null
  readonly abilities: readonly string[]
  /** The only worker where the run can run, because it has the sandbox's disk already, or null. */
  readonly home_worker_id: WorkerId | null
  /** The needs of the run's volumes. Null: the run uses no volume. */
  readonly volumes: VolumeNeeds | null
  /**
   * The canonical spelling of the run's image. Among suitable workers, those that store this image come first. Null: no
   * worker is preferred.
   */
  readonly image: string | null
  /** The ports that the worker's machine must listen on for the run. Absent: none. */
  readonly ports?: readonly PublishedPort[]
}

/** The needs of a run's volumes on a worker. */
export type VolumeNeeds = {
  /** The workers that have the files of one or more of the volumes. */
  readonly homes: readonly WorkerId[]
  /** Whether one of the volumes is in a storage that workers share. */
  readonly needs_shared: boolean
  /** Whether one of the volumes or its organization has a cap. */
  readonly needs_caps: boolean
}

/** The properties of a worker except capacity. Many workers may have the same profile. */
export type WorkerProfile = Pick<Publishing, 'publishes'> & {
  readonly abilities: readonly string[]
  readonly storage: Pick<StorageReport, 'is_shared' | 'enforces_caps'> | null
  /** The images that need no pull on the worker, in canonical spelling. */
  readonly images: readonly string[]
  /** The size of a disk for which a sandbox names no size. Null: the worker's version doesn't report it. */
  readonly default_disk_mib: number | null
}

/** A worker with its free capacity. */
export type PlacementWorker = WorkerProfile &
  Pick<Publishing, 'taken_ports'> & {
    readonly id: WorkerId
    /** The organizations whose runs it may get. Null: all. */
    readonly org_ids: readonly OrgId[] | null
    readonly free_vcpus: number
    readonly free_memory_mib: number
    /** Null: the worker doesn't limit the sum of its disks. */
    readonly free_disk_mib: number | null
    /** Whether its file system is full up to its reserve, so that it gets no new disks. */
    readonly is_disk_short?: boolean
  }

/**
 * `pack` fills workers one after the other, so that large requests still find capacity. `spread` distributes runs
 * evenly.
 */
export const PLACEMENT_POLICIES = ['pack', 'spread'] as const
export type PlacementPolicy = (typeof PLACEMENT_POLICIES)[number]

/** Whether a worker can reach volumes and enforce their caps. */
export function canReachVolumes(
  { id, storage }: { readonly id: WorkerId; readonly storage: WorkerProfile['storage'] },
  needs: VolumeNeeds,
): boolean {
  return storageSatisfies(storage, needs) && needs.homes.every((home) => home === id)
}

/** The part of `canReachVolumes` that is the same for all workers with equal storage. */
export function storageSatisfies(
  storage: WorkerProfile['storage'],
  needs: Pick<VolumeNeeds, 'needs_shared' | 'needs_caps'>,
): boolean {
  if (storage === null) return false
  if (needs.needs_caps && !storage.enforces_caps) return false
  return storage.is_shared || !needs.needs_shared
}

/**
 * The workers that have the disk or a volume of a run. If there is none, the run can run anywhere. If there are
 * several, it can't run at all.
 */
export function homeWorkersOf({
  home_worker_id,
  volumes,
}: Pick<PlacementRequest, 'home_worker_id' | 'volumes'>): ReadonlySet<WorkerId> {
  return new Set([...(volumes?.homes ?? []), ...(home_worker_id === null ? [] : [home_worker_id])])
}

/**
 * Whether a run can't be placed anywhere, whatever capacity is free. Its volumes, or its volumes and its writable
 * layer, are on different workers.
 */
export function hasConflictingHomes(request: Pick<PlacementRequest, 'home_worker_id' | 'volumes'>): boolean {
  return homeWorkersOf(request).size > 1
}

/**
 * How much disk capacity a run takes on a worker. The disk of a sandbox counts as long as it exists, so a run takes
 * nothing where its disk is already.
 */
export function diskTakenOn(
  { id, default_disk_mib }: Pick<PlacementWorker, 'id' | 'default_disk_mib'>,
  { home_worker_id, disk_mib }: Pick<PlacementRequest, 'home_worker_id' | 'disk_mib'>,
): number {
  return home_worker_id === id ? 0 : (disk_mib ?? default_disk_mib ?? 0)
}
