import type { WorkerId } from './ids.ts'

/** A run that needs a place. */
export type PlacementRequest<Id> = {
  readonly id: Id
  readonly vcpus: number
  readonly memory_mib: number
  readonly abilities: readonly string[]
  /** When set, the one worker where it can run. */
  readonly home_worker_id: WorkerId | null
}

/** A worker with what is free on it. */
export type PlacementWorker = {
  readonly id: WorkerId
  readonly free_vcpus: number
  readonly free_memory_mib: number
  readonly abilities: readonly string[]
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
  const free = workers.map(({ id, free_vcpus, free_memory_mib, abilities }) => ({
    id,
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
