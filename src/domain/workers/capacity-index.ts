import type { OrgId, WorkerId } from '../ids.ts'
import type { PublishedPort } from '../spec/published-ports.ts'
import {
  diskTakenOn,
  storageSatisfies,
  homeWorkersOf,
  type PlacementPolicy,
  type PlacementRequest,
  type PlacementWorker,
} from './placement.ts'
import {
  bucketOf,
  fits,
  makeCapacityBuckets,
  memoryLevel,
  type FreeCapacity,
  type CapacityBuckets,
  type RequestedCapacity,
} from './capacity-buckets.ts'

import { canPublish, type PublishRange } from './publishing.ts'

/** The free capacity of all workers, for placing a batch of runs. */
export type CapacityIndex = {
  /**
   * Chooses a worker for a request and subtracts the request from the worker's free capacity. Returns null when no
   * suitable worker has enough free capacity. A worker never gets more than it has free. Workers that store the
   * request's image are preferred. Then the placement policy decides.
   */
  allocate(request: PlacementRequest): WorkerId | null
  /** The maxima of the workers' free vCPUs, memory and disk when the index was made. */
  readonly largestFree: LargestFree
}

/** The most that is free on any worker, each amount for itself. */
export type LargestFree = RequestedCapacity & {
  /** Whether a worker has disk capacity for a new disk of its default size. */
  readonly has_default_disk: boolean
}

/**
 * The maximum number of images with buckets of their own. The number is limited, because every allocation must update
 * these buckets. For any other image, only the first `HOLDERS_CONSIDERED_MAX` workers that store the image are checked.
 */
const INDEXED_IMAGES_MAX = 64
const HOLDERS_CONSIDERED_MAX = 32
/** For each kind of `Needs`: how many requested sizes are remembered for which no worker had the capacity. */
const UNAVAILABLE_SIZES_MAX = 16

type IndexedWorker = FreeCapacity & {
  readonly id: WorkerId
  readonly publishes: readonly PublishRange[]
  /** Grows with each request that gets ports here. */
  taken_ports: readonly PublishedPort[]
  readonly group: ProfileGroup
  readonly buckets: CapacityBuckets<IndexedWorker>[]
}

/** Workers with the same abilities, the same kind of storage, the same organizations and the same default disk. */
type ProfileGroup = {
  readonly default_disk_mib: number | null
  readonly orgs: ReadonlySet<OrgId> | null
  readonly abilities: ReadonlySet<string>
  readonly storage: PlacementWorker['storage']
  readonly all: CapacityBuckets<IndexedWorker>
  readonly holders: Map<string, IndexedWorker[]>
  readonly indexByImage: Map<string, CapacityBuckets<IndexedWorker>>
}

/**
 * The groups of workers that satisfy the same `Needs`, and sizes for which none of these workers had the capacity. Such
 * a size, and any larger one, need not be searched again, because free capacity only shrinks in this index.
 */
type Candidates = {
  readonly groups: readonly ProfileGroup[]
  readonly unavailable: Pick<PlacementRequest, 'vcpus' | 'memory_mib' | 'disk_mib'>[]
}

/** Makes an index of workers by their free capacity. */
export function makeCapacityIndex(workers: readonly PlacementWorker[], policy: PlacementPolicy): CapacityIndex {
  const groups = new Map<string, ProfileGroup>()
  const indexed = new Map<WorkerId, IndexedWorker>()
  const candidatesByNeeds = new Map<string, Candidates>()
  const from = policy === 'pack' ? 'least' : 'most'
  /** The organizations that have workers of their own. All others have the same candidates. */
  const orgsWithWorkers = new Set<OrgId>()
  let indexedImages = 0

  const groupOf = makeGroupFinder(groups)
  for (const one of workers) {
    const { id, free_vcpus, free_memory_mib, images, org_ids, publishes = [], taken_ports = [] } = one
    const group = groupOf(one)
    if (org_ids !== null) for (const org of org_ids) orgsWithWorkers.add(org)
    const free_disk_mib = one.free_disk_mib ?? Number.POSITIVE_INFINITY
    const free = { free_vcpus, free_memory_mib, free_disk_mib }
    const worker: IndexedWorker = { id, ...free, publishes, taken_ports, group, buckets: [group.all] }
    indexed.set(id, worker)
    group.all.add(worker, bucketOf(worker))
    for (const image of images) {
      const holders = group.holders.get(image)
      if (holders === undefined) group.holders.set(image, [worker])
      else holders.push(worker)
    }
  }

  const candidatesFor = ({ org_id, abilities, volumes }: Needs): Candidates => {
    const key = `${orgsWithWorkers.has(org_id) ? org_id : ''} ${String(volumes === null)} ${String(volumes?.needs_shared)} ${String(volumes?.needs_caps)} ${abilities.join(' ')}`
    const known = candidatesByNeeds.get(key)
    if (known !== undefined) return known
    const made = {
      groups: [...groups.values()].filter((group) => satisfies(group, { org_id, abilities, volumes })),
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
    return preferred(policy, looked.filter((worker) => fits(worker, size))) // prettier-ignore
  }

  const choose = ({ groups, unavailable }: Candidates, request: PlacementRequest): IndexedWorker | null => {
    const { vcpus, memory_mib, disk_mib, image } = request
    if (unavailable.some((size) => isAtLeast(request, size))) return null
    if (image !== null) {
      const holder = preferred(policy, groups.map((group) => findHolder(group, image, sizeOn(group, request)))) // prettier-ignore
      if (holder !== null) return holder
    }
    const found = preferred(policy, groups.map((group) => group.all.find(sizeOn(group, request), from))) // prettier-ignore
    if (found === null) {
      if (unavailable.length >= UNAVAILABLE_SIZES_MAX) unavailable.shift()
      unavailable.push({ vcpus, memory_mib, disk_mib })
    }
    return found
  }

  /** Looks at every worker: few requests publish ports, and no bucket knows which ports are free. */
  const chooseForPorts = ({ groups }: Candidates, request: PlacementRequest): IndexedWorker | null => {
    const able = [...indexed.values()].filter(
      (worker) =>
        groups.includes(worker.group) &&
        fits(worker, sizeOn(worker.group, request)) &&
        canPublish(worker, request.ports ?? []),
    )
    const holders = able.filter(({ group, id }) => group.holders.get(request.image ?? '')?.some((one) => one.id === id))
    return preferred(policy, holders.length > 0 ? holders : able)
  }

  const chooseHomeWorker = (homes: ReadonlySet<WorkerId>, request: PlacementRequest): IndexedWorker | null => {
    const [home] = homes
    const worker = home === undefined || homes.size > 1 ? undefined : indexed.get(home)
    if (worker === undefined || !satisfies(worker.group, request)) return null
    if (!canPublish(worker, request.ports ?? [])) return null
    return fits(worker, { ...request, disk_mib: diskOn(worker, request) }) ? worker : null
  }

  return {
    largestFree: largestFreeOf(indexed.values()),
    allocate(request) {
      const homes = homeWorkersOf(request)
      const chooseAnywhere = request.ports === undefined ? choose : chooseForPorts
      const worker = homes.size > 0 ? chooseHomeWorker(homes, request) : chooseAnywhere(candidatesFor(request), request)
      if (worker === null) return null
      if (request.ports !== undefined) worker.taken_ports = [...worker.taken_ports, ...request.ports]
      const before = bucketOf(worker)
      worker.free_vcpus -= request.vcpus
      worker.free_memory_mib -= request.memory_mib
      worker.free_disk_mib -= diskOn(worker, request)
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

type Needs = Pick<PlacementRequest, 'org_id' | 'abilities' | 'volumes'>

/**
 * Returns a function that finds or creates the group of a worker. Workers with the same profile share one array of
 * abilities, so each array is sorted only once.
 */
function makeGroupFinder(
  groups: Map<string, ProfileGroup>,
): (profile: Pick<PlacementWorker, 'abilities' | 'storage' | 'org_ids' | 'default_disk_mib'>) => ProfileGroup {
  const keys = new Map<readonly string[], string>()
  return ({ abilities, storage, org_ids, default_disk_mib }) => {
    const ofAbilities = keys.get(abilities) ?? abilities.toSorted().join(' ')
    keys.set(abilities, ofAbilities)
    const ofOrgs = org_ids === null ? '' : `for ${org_ids.toSorted().join(' ')}`
    const key = `${String(default_disk_mib)} ${String(storage?.is_shared)} ${String(storage?.enforces_caps)} ${ofAbilities} ${ofOrgs}`
    const known = groups.get(key)
    if (known !== undefined) return known
    const all = makeCapacityBuckets<IndexedWorker>()
    const made: ProfileGroup = {
      default_disk_mib,
      orgs: org_ids === null ? null : new Set(org_ids),
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

/**
 * Whether the workers of a group may get runs of a request's organization, have the abilities that it needs, and
 * storage that its volumes can use.
 */
function satisfies(
  { orgs, abilities, storage }: Pick<ProfileGroup, 'orgs' | 'abilities' | 'storage'>,
  needs: Needs,
): boolean {
  return (
    (orgs === null || orgs.has(needs.org_id)) &&
    needs.abilities.every((ability) => abilities.has(ability)) &&
    (needs.volumes === null || storageSatisfies(storage, needs.volumes))
  )
}

/** What a request without a home takes on each worker of a group. */
function sizeOn({ default_disk_mib }: ProfileGroup, request: PlacementRequest): RequestedCapacity {
  const { vcpus, memory_mib, disk_mib } = request
  return { vcpus, memory_mib, disk_mib: disk_mib ?? default_disk_mib ?? 0 }
}

function diskOn({ id, group: { default_disk_mib } }: IndexedWorker, request: PlacementRequest): number {
  return diskTakenOn({ id, default_disk_mib }, request)
}

/** Whether a request needs at least this size on every worker. */
function isAtLeast(request: PlacementRequest, size: Candidates['unavailable'][number]): boolean {
  if (request.vcpus < size.vcpus || request.memory_mib < size.memory_mib) return false
  if (request.disk_mib === null || size.disk_mib === null) return request.disk_mib === size.disk_mib
  return request.disk_mib >= size.disk_mib
}

function largestFreeOf(workers: Iterable<IndexedWorker>): LargestFree {
  const most = { vcpus: 0, memory_mib: 0, disk_mib: 0, has_default_disk: false }
  for (const { free_vcpus, free_memory_mib, free_disk_mib, group } of workers) {
    most.vcpus = Math.max(most.vcpus, free_vcpus)
    most.memory_mib = Math.max(most.memory_mib, free_memory_mib)
    most.disk_mib = Math.max(most.disk_mib, free_disk_mib)
    most.has_default_disk ||= free_disk_mib >= (group.default_disk_mib ?? 0)
  }
  return most
}

/** Chooses the worker that the policy prefers. Among equally full workers, it chooses the first. */
function preferred(policy: PlacementPolicy, found: readonly (IndexedWorker | null)[]): IndexedWorker | null {
  let best: IndexedWorker | null = null
  for (const worker of found) {
    if (worker === null) continue
    const gain = best === null ? 1 : memoryLevel(worker.free_memory_mib) - memoryLevel(best.free_memory_mib)
    if (best === null || (policy === 'pack' ? gain < 0 : gain > 0)) best = worker
  }
  return best
}
