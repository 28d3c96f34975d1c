import type { WorkerId } from '../ids.ts'
import {
  storageSatisfies,
  homeWorkersOf,
  type PlacementPolicy,
  type PlacementRequest,
  type PlacementWorker,
} from './placement.ts'
import {
  bucketOf,
  makeCapacityBuckets,
  memoryLevel,
  type FreeCapacity,
  type CapacityBuckets,
  type RequestedCapacity,
} from './capacity-buckets.ts'

/** The free capacity of a fleet. */
export type CapacityIndex = {
  /**
   * Chooses a worker for a request and subtracts the request from the worker's free capacity. Returns null when no
   * worker has enough now. A worker is never overcommitted. Among the workers that can run the request, a worker with
   * its image comes first, then the policy decides.
   */
  allocate(request: PlacementRequest): WorkerId | null
  /** The most free vCPUs and the most free memory of any worker when the index was made. */
  readonly largestFree: RequestedCapacity
}

/**
 * The most images that have buckets of their own, because these must be kept up to date. For other images, only the
 * first workers that have the image are checked.
 */
const INDEXED_IMAGES_MAX = 64
const HOLDERS_CONSIDERED_MAX = 32
/** The most sizes without a free worker that are remembered for each kind of need. */
const UNAVAILABLE_SIZES_MAX = 16

type IndexedWorker = FreeCapacity & {
  readonly id: WorkerId
  readonly group: ProfileGroup
  readonly buckets: CapacityBuckets<IndexedWorker>[]
}

/** Workers with the same abilities and the same kind of storage. */
type ProfileGroup = {
  readonly abilities: ReadonlySet<string>
  readonly storage: PlacementWorker['storage']
  readonly all: CapacityBuckets<IndexedWorker>
  readonly holders: Map<string, IndexedWorker[]>
  readonly indexByImage: Map<string, CapacityBuckets<IndexedWorker>>
}

/**
 * The groups that satisfy one need, and the smallest sizes for which none of them had capacity. Free capacity only
 * shrinks in this index.
 */
type Candidates = { readonly groups: readonly ProfileGroup[]; readonly unavailable: RequestedCapacity[] }

/** Makes an index of workers by their free capacity. */
export function makeCapacityIndex(workers: readonly PlacementWorker[], policy: PlacementPolicy): CapacityIndex {
  const groups = new Map<string, ProfileGroup>()
  const indexed = new Map<WorkerId, IndexedWorker>()
  const candidatesByNeeds = new Map<string, Candidates>()
  const from = policy === 'pack' ? 'least' : 'most'
  let indexedImages = 0

  const groupOf = makeGroupFinder(groups)
  for (const { id, free_vcpus, free_memory_mib, abilities, storage, images } of workers) {
    const group = groupOf({ abilities, storage })
    const worker: IndexedWorker = { id, free_vcpus, free_memory_mib, group, buckets: [group.all] }
    indexed.set(id, worker)
    group.all.add(worker, bucketOf(worker))
    for (const image of images) {
      const holders = group.holders.get(image)
      if (holders === undefined) group.holders.set(image, [worker])
      else holders.push(worker)
    }
  }

  const candidatesFor = ({ abilities, volumes }: Needs): Candidates => {
    const key = `${String(volumes === null)} ${String(volumes?.needs_shared)} ${String(volumes?.needs_caps)} ${abilities.join(' ')}`
    const known = candidatesByNeeds.get(key)
    if (known !== undefined) return known
    const made = {
      groups: [...groups.values()].filter((group) => satisfies(group, { abilities, volumes })),
      unavailable: [],
    }
    candidatesByNeeds.set(key, made)
    return made
  }

  const imageIndexOf = (group: ProfileGroup, image: string): CapacityBuckets<IndexedWorker> | null => {
    const known = group.indexByImage.get(image)
    if (known !== undefined) return known
    const holders = group.holders.get(image) ?? []
    if (holders.length <= HOLDERS_CONSIDERED_MAX || indexedImages >= INDEXED_IMAGES_MAX) return null
    const index = makeCapacityBuckets<IndexedWorker>()
    for (const holder of holders) {
      index.add(holder, bucketOf(holder))
      holder.buckets.push(index)
    }
    indexedImages += 1
    group.indexByImage.set(image, index)
    return index
  }

  const findHolder = (group: ProfileGroup, image: string, size: RequestedCapacity): IndexedWorker | null => {
    const index = imageIndexOf(group, image)
    if (index !== null) return index.find(size, from)
    const looked = (group.holders.get(image) ?? []).slice(0, HOLDERS_CONSIDERED_MAX)
    return preferred(policy, looked.filter((worker) => hasCapacity(worker, size))) // prettier-ignore
  }

  const choose = ({ groups, unavailable }: Candidates, request: PlacementRequest): IndexedWorker | null => {
    const { vcpus, memory_mib, image } = request
    if (unavailable.some((size) => vcpus >= size.vcpus && memory_mib >= size.memory_mib)) return null
    if (image !== null) {
      const holder = preferred(policy, groups.map((group) => findHolder(group, image, request))) // prettier-ignore
      if (holder !== null) return holder
    }
    const found = preferred(policy, groups.map((group) => group.all.find(request, from))) // prettier-ignore
    if (found === null) {
      if (unavailable.length >= UNAVAILABLE_SIZES_MAX) unavailable.shift()
      unavailable.push({ vcpus, memory_mib })
    }
    return found
  }

  const chooseHomeWorker = (homes: ReadonlySet<WorkerId>, request: PlacementRequest): IndexedWorker | null => {
    const [home] = homes
    const worker = home === undefined || homes.size > 1 ? undefined : indexed.get(home)
    return worker !== undefined && satisfies(worker.group, request) && hasCapacity(worker, request) ? worker : null
  }

  return {
    largestFree: {
      vcpus: workers.reduce((most, { free_vcpus }) => Math.max(most, free_vcpus), 0),
      memory_mib: workers.reduce((most, { free_memory_mib }) => Math.max(most, free_memory_mib), 0),
    },
    allocate(request) {
      const homes = homeWorkersOf(request)
      const worker = homes.size > 0 ? chooseHomeWorker(homes, request) : choose(candidatesFor(request), request)
      if (worker === null) return null
      const before = bucketOf(worker)
      worker.free_vcpus -= request.vcpus
      worker.free_memory_mib -= request.memory_mib
      const after = bucketOf(worker)
      if (after === before && policy === 'pack') return worker.id
      for (const index of worker.buckets) {
        index.remove(worker, before)
        index.add(worker, after) // goes to the end of its bucket: equal workers are chosen in turn
      }
      return worker.id
    },
  }
}

type Needs = Pick<PlacementRequest, 'abilities' | 'volumes'>

/** Finds or makes the group of a worker. Workers of one profile share one list of abilities, which is compared once. */
function makeGroupFinder(
  groups: Map<string, ProfileGroup>,
): (profile: Pick<PlacementWorker, 'abilities' | 'storage'>) => ProfileGroup {
  const keys = new Map<readonly string[], string>()
  return ({ abilities, storage }) => {
    const ofAbilities = keys.get(abilities) ?? abilities.toSorted().join(' ')
    keys.set(abilities, ofAbilities)
    const key = `${String(storage?.is_shared)} ${String(storage?.enforces_caps)} ${ofAbilities}`
    const known = groups.get(key)
    if (known !== undefined) return known
    const all = makeCapacityBuckets<IndexedWorker>()
    const made: ProfileGroup = {
      abilities: new Set(abilities),
      storage,
      all,
      holders: new Map(),
      indexByImage: new Map(),
    }
    groups.set(key, made)
    return made
  }
}

/** Whether the workers of a group can enforce what a request asks for, and reach its volumes on any worker. */
function satisfies({ abilities, storage }: Pick<ProfileGroup, 'abilities' | 'storage'>, needs: Needs): boolean {
  return (
    needs.abilities.every((ability) => abilities.has(ability)) &&
    (needs.volumes === null || storageSatisfies(storage, needs.volumes))
  )
}

function hasCapacity({ free_vcpus, free_memory_mib }: FreeCapacity, { vcpus, memory_mib }: RequestedCapacity): boolean {
  return free_vcpus >= vcpus && free_memory_mib >= memory_mib
}

/** The worker that the policy prefers. Among equal workers, the first. */
function preferred(policy: PlacementPolicy, found: readonly (IndexedWorker | null)[]): IndexedWorker | null {
  let best: IndexedWorker | null = null
  for (const worker of found) {
    if (worker === null) continue
    const gain = best === null ? 1 : memoryLevel(worker.free_memory_mib) - memoryLevel(best.free_memory_mib)
    if (best === null || (policy === 'pack' ? gain < 0 : gain > 0)) best = worker
  }
  return best
}
