import { storageSatisfies, homeWorkersOf, type PlacementRequest, type PlacementWorker } from './placement.ts'

export const REQUIREMENT_KINDS = ['resource', 'ability', 'volume', 'disk', 'worker'] as const

/** Something that a run needs and that no worker has for it now. */
export type MissingRequirement = {
  readonly kind: (typeof REQUIREMENT_KINDS)[number]
  /** Such as `vcpus`, or the ability's name. */
  readonly name: string
  /** An amount, or in words. */
  readonly requested: number | string
  /** Of an amount: what the worker that comes closest has free. */
  readonly largest_free: number | null
  /** Of what is no amount: what would do, in words. */
  readonly accepted: string | null
}

/** Why a run has no place. */
export type PlacementExplanation = {
  /** Empty when there is room by now. */
  readonly missing: readonly MissingRequirement[]
  /** What is free on the worker that comes closest to taking it, of those that could run it if they had room. */
  readonly largest_free: { readonly vcpus: number; readonly memory_mib: number }
}

/** Says what a run lacks: what no worker can do at all first, then room on those that could run it. */
export function explainPlacement(request: PlacementRequest, workers: readonly PlacementWorker[]): PlacementExplanation {
  const missing: MissingRequirement[] = []
  let able = workers
  for (const { can, lack } of requirementsOf(request, workers)) {
    if (workers.length === 0 && missing.length > 0) break
    const left = able.filter(can)
    if (left.length > 0) able = left
    else missing.push({ ...lack, largest_free: null })
  }
  const { vcpus, memory_mib } = request
  const closest = able.reduce<PlacementWorker | null>(
    (best, worker) => (best === null || fitRatio(worker, request) > fitRatio(best, request) ? worker : best),
    null,
  )
  const largest_free = {
    vcpus: Math.max(0, closest?.free_vcpus ?? 0),
    memory_mib: Math.max(0, closest?.free_memory_mib ?? 0),
  }
  const resource = (name: 'vcpus' | 'memory_mib', requested: number): readonly MissingRequirement[] =>
    largest_free[name] >= requested
      ? []
      : [{ kind: 'resource', name, requested, largest_free: largest_free[name], accepted: null }]
  if (closest !== null) missing.push(...resource('vcpus', vcpus), ...resource('memory_mib', memory_mib))
  return { missing, largest_free }
}

/** Something that a worker can do or can't, whatever room it has. */
type Requirement = {
  readonly can: (worker: PlacementWorker) => boolean
  readonly lack: Omit<MissingRequirement, 'largest_free'>
}

/** What a run asks beside room, in the order in which workers are ruled out. */
function requirementsOf(request: PlacementRequest, workers: readonly PlacementWorker[]): readonly Requirement[] {
  const { abilities, volumes, home_worker_id } = request
  const sets = new Map(workers.map((worker) => [worker.abilities, new Set(worker.abilities)]))
  const homes = homeWorkersOf(request)
  const isDisk = homes.size === 1 && home_worker_id !== null && homes.has(home_worker_id)
  const volume = { kind: 'volume', name: 'volumes', requested: 'the volumes of the sandbox' } as const
  return [
    {
      can: () => true,
      lack: {
        kind: 'worker',
        name: 'worker',
        requested: 'a worker',
        accepted: 'one that is connected and not drained',
      },
    },
    ...abilities.map((ability): Requirement => ({
      can: (worker) => sets.get(worker.abilities)?.has(ability) === true,
      lack: { kind: 'ability', name: ability, requested: ability, accepted: 'a worker that offers it with the others' },
    })),
    ...(homes.size === 0
      ? []
      : [
          {
            can: ({ id }: PlacementWorker) => homes.size === 1 && homes.has(id),
            lack: {
              ...(isDisk ? ({ kind: 'disk', name: 'disk', requested: 'the disk of the sandbox' } as const) : volume),
              accepted: 'the worker where it lies, connected and not drained',
            },
          },
        ]),
    ...(volumes === null
      ? []
      : [
          {
            can: ({ storage }: PlacementWorker) => storageSatisfies(storage, volumes),
            lack: {
              ...volume,
              accepted: `a worker that reaches them${volumes.needs_caps ? ' and enforces caps' : ''}`,
            },
          },
        ]),
  ]
}

/** 1 or more: it has room. */
function fitRatio(worker: PlacementWorker, { vcpus, memory_mib }: PlacementRequest): number {
  return Math.min(worker.free_vcpus / vcpus, worker.free_memory_mib / memory_mib)
}
