import type { WorkerId } from './ids.ts'
import type { StorageReport } from './run.ts'

/** A run that needs a place. */
export type PlacementRequest<Id> = {
  readonly id: Id
  readonly vcpus: number
  readonly memory_mib: number
  readonly abilities: readonly string[]
  /** When set, the one worker where it can run. */
  readonly home_worker_id: WorkerId | null
  /** What its volumes ask of the worker; null: it mounts none. */
  readonly volumes: VolumeNeeds | null
}

/** What the volumes of a run ask of its worker. */
export type VolumeNeeds = {
  /** The workers that hold the files of one or more of them. */
  readonly homes: readonly WorkerId[]
  /** Whether one of them lies in a storage that workers share. */
  readonly needs_shared: boolean
  /** Whether one of them has a cap, or its organization has one. */
  readonly needs_caps: boolean
}

/** A worker with what is free on it. */
export type PlacementWorker = {
  readonly id: WorkerId
  readonly free_vcpus: number
  readonly free_memory_mib: number
  readonly abilities: readonly string[]
  readonly storage: Pick<StorageReport, 'is_shared' | 'enforces_caps'> | null
}

export type Placement<Id> = {
  readonly placed: readonly { readonly id: Id; readonly worker_id: WorkerId }[]
  /** Those that no worker has room for now, in the order they came. */
  readonly waiting: readonly Id[]
}

/**
 * Gives runs to workers, the oldest request first: among the workers that can run it, the one that is left with the
 * least free memory (best fit), so that large requests keep finding room. A worker never gets more than it has.
 */
export function place<Id>(
  requests: readonly PlacementRequest<Id>[],
  workers: readonly PlacementWorker[],
): Placement<Id> {
  const free = workers.map(({ id, free_vcpus, free_memory_mib, abilities, storage }) => ({
    id,
    storage,
    free_vcpus,
    free_memory_mib,
    abilities: new Set(abilities),
  }))
  const placed: { id: Id; worker_id: WorkerId }[] = []
  const waiting: Id[] = []
  for (const request of requests) {
    let best: (typeof free)[number] | null = null
    for (const worker of free) {
      if (request.home_worker_id !== null && worker.id !== request.home_worker_id) continue
      if (worker.free_vcpus < request.vcpus || worker.free_memory_mib < request.memory_mib) continue
      if (!request.abilities.every((ability) => worker.abilities.has(ability))) continue
      if (request.volumes !== null && !canHold(worker, request.volumes)) continue
      if (best === null || worker.free_memory_mib < best.free_memory_mib) best = worker
    }
    if (best === null) {
      waiting.push(request.id)
      continue
    }
    best.free_vcpus -= request.vcpus
    best.free_memory_mib -= request.memory_mib
    placed.push({ id: request.id, worker_id: best.id })
  }
  return { placed, waiting }
}

/** Whether volumes can be reached from a worker, with their caps in force. */
export function canHold({ id, storage }: Pick<PlacementWorker, 'id' | 'storage'>, needs: VolumeNeeds): boolean {
  if (storage === null) return false
  if (needs.needs_caps && !storage.enforces_caps) return false
  return (storage.is_shared || !needs.needs_shared) && needs.homes.every((home) => home === id)
}

/**
 * Whether a run can be placed nowhere, whatever room there is: its volumes, or its volumes and its writable layer, lie on
 * different workers.
 */
export function isTorn({
  home_worker_id,
  volumes,
}: Pick<PlacementRequest<unknown>, 'home_worker_id' | 'volumes'>): boolean {
  const homes = new Set([...(volumes?.homes ?? []), ...(home_worker_id === null ? [] : [home_worker_id])])
  return homes.size > 1
}
