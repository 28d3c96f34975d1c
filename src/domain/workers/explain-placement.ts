import {
  diskTakenOn,
  storageSatisfies,
  homeWorkersOf,
  type PlacementRequest,
  type PlacementWorker,
} from './placement.ts'
import { canPublish } from './publishing.ts'

export const REQUIREMENT_KINDS = ['resource', 'ability', 'volume', 'disk', 'port', 'worker'] as const

/** A need of a waiting run that no worker can satisfy now. */
export type MissingRequirement = {
  readonly kind: (typeof REQUIREMENT_KINDS)[number]
  /** The name of the need: for example `vcpus`, or the name of an ability. */
  readonly name: string
  /** An amount, or a description. */
  readonly requested: number | string
  /** For an amount: how much is free on the worker that comes closest to the needed capacity. */
  readonly largest_free: number | null
  /** For disk and any other need than an amount: a description of what would satisfy it. */
  readonly accepted: string | null
}

/** Why a run has no worker. */
export type PlacementExplanation = {
  /** Empty if a worker has the capacity by now. */
  readonly missing: readonly MissingRequirement[]
  /**
   * The free capacity of the worker that comes closest to the needed capacity. A worker doesn't count if it fails
   * another need that some worker satisfies.
   */
  readonly largest_free: {
    readonly vcpus: number
    readonly memory_mib: number
    /** Null: the worker doesn't limit the sum of its disks. */
    readonly disk_mib: number | null
  }
}

/**
 * Finds the unsatisfied needs of a run: first the needs that no worker satisfies, then the capacity that is missing on
 * the workers that satisfy all other needs.
 */
export function explainPlacement(request: PlacementRequest, workers: readonly PlacementWorker[]): PlacementExplanation {
  const missing: MissingRequirement[] = []
  let able = workers
  for (const { isMetBy, missing: requirement } of requirementsOf(request, workers)) {
    if (workers.length === 0 && missing.length > 0) break
    const left = able.filter(isMetBy)
    if (left.length > 0) able = left
    else missing.push({ ...requirement, largest_free: null })
  }
  const { vcpus, memory_mib } = request
  const closest = able.reduce<PlacementWorker | null>(
    (best, worker) => (best === null || fitRatio(worker, request) > fitRatio(best, request) ? worker : best),
    null,
  )
  const free_disk_mib = closest === null ? 0 : closest.free_disk_mib
  const largest_free = {
    vcpus: Math.max(0, closest?.free_vcpus ?? 0),
    memory_mib: Math.max(0, closest?.free_memory_mib ?? 0),
    disk_mib: free_disk_mib === null ? null : Math.max(0, free_disk_mib),
  }
  const resource = (name: keyof typeof largest_free, requested: number): readonly MissingRequirement[] => {
    const free = largest_free[name]
    if (free === null || free >= requested) return []
    const accepted = name === 'disk_mib' ? describeDiskRemedy(closest) : null
    return [{ kind: 'resource', name, requested, largest_free: free, accepted }]
  }
  if (closest !== null) {
    missing.push(...resource('vcpus', vcpus), ...resource('memory_mib', memory_mib))
    missing.push(...resource('disk_mib', diskTakenOn(closest, request)))
  }
  return { missing, largest_free }
}

function describeDiskRemedy(worker: PlacementWorker | null): string {
  return worker?.is_disk_short === true
    ? 'free space on the worker: its disk is full up to SANDYARD_DISK_RESERVE_MIB; delete sandboxes or files of volumes'
    : 'a smaller resources.disk_size_mib, fewer sandboxes (stopped ones count too), or a higher SANDYARD_DISK_OVERCOMMIT'
}

/** A need that a worker satisfies or not, whatever its capacity. */
type Requirement = {
  readonly isMetBy: (worker: PlacementWorker) => boolean
  readonly missing: Omit<MissingRequirement, 'largest_free'>
}

/** The needs of a run except capacity, in the order in which they are checked. */
function requirementsOf(request: PlacementRequest, workers: readonly PlacementWorker[]): readonly Requirement[] {
  const { abilities, volumes, home_worker_id, ports = [] } = request
  const sets = new Map(workers.map((worker) => [worker.abilities, new Set(worker.abilities)]))
  const homes = homeWorkersOf(request)
  const isDisk = homes.size === 1 && home_worker_id !== null && homes.has(home_worker_id)
  const volume = { kind: 'volume', name: 'volumes', requested: 'the volumes of the sandbox' } as const
  return [
    {
      isMetBy: () => true,
      missing: {
        kind: 'worker',
        name: 'worker',
        requested: 'a worker',
        accepted: 'a worker that is connected and not drained',
      },
    },
    ...abilities.map((ability): Requirement => ({
      isMetBy: (worker) => sets.get(worker.abilities)?.has(ability) === true,
      missing: {
        kind: 'ability',
        name: ability,
        requested: ability,
        accepted: 'a worker that has this ability and the others that the sandbox needs',
      },
    })),
    ...(homes.size === 0
      ? []
      : [
          {
            isMetBy: ({ id }: PlacementWorker) => homes.size === 1 && homes.has(id),
            missing: {
              ...(isDisk ? ({ kind: 'disk', name: 'disk', requested: 'the disk of the sandbox' } as const) : volume),
              accepted: 'the worker that stores it, connected and not drained',
            },
          },
        ]),
    ...ports.map((port): Requirement => ({
      isMetBy: (worker) => canPublish(worker, [port]),
      missing: {
        kind: 'port',
        name: `${port.protocol} port ${String(port.host_port)}`,
        requested: `${port.host_bind}:${String(port.host_port)}`,
        accepted: 'a worker that may publish this port, and no other sandbox there that publishes it',
      },
    })),
    ...(volumes === null
      ? []
      : [
          {
            isMetBy: ({ storage }: PlacementWorker) => storageSatisfies(storage, volumes),
            missing: {
              ...volume,
              accepted: `a worker that reaches them${volumes.needs_caps ? ' and enforces caps' : ''}`,
            },
          },
        ]),
  ]
}

/**
 * The free capacity of a worker divided by the requested one; the smallest ratio of vCPUs, memory and disk. From 1 on,
 * the request fits.
 */
function fitRatio(worker: PlacementWorker, request: PlacementRequest): number {
  const { vcpus, memory_mib } = request
  const disk_mib = diskTakenOn(worker, request)
  const ofDisk = disk_mib === 0 ? Infinity : (worker.free_disk_mib ?? Infinity) / disk_mib
  return Math.min(worker.free_vcpus / vcpus, worker.free_memory_mib / memory_mib, ofDisk)
}
