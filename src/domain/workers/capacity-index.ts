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

/** The free room of a fleet. */
export type CapacityIndex = {
  /**
   * The worker that a request goes to, whose room is taken then; null: none has room for it now. A worker never gets more
   * than it has. Of the workers that can run it, one that holds its image comes first, then the policy decides.
   */
  allocate(request: PlacementRequest): WorkerId | null
  /** No worker had more free than this, of either, when the pool was made. */
  readonly largestFree: RequestedCapacity
}

/** The images that get a shelf of their own, which must be kept in order; of others only the first holders are looked at. */
const INDEXED_IMAGES_MAX = 64
const HOLDERS_CONSIDERED_MAX = 32
/** How many sizes that had no room are remembered for each kind of need. */
const UNAVAILABLE_SIZES_MAX = 16

type IndexedWorker = FreeCapacity & {
  readonly id: WorkerId
  readonly kind: ProfileGroup
  readonly shelves: CapacityBuckets<IndexedWorker>[]
}

/** Workers that can do the same. */
type ProfileGroup = {
  readonly abilities: ReadonlySet<string>
  readonly storage: PlacementWorker['storage']
  readonly all: CapacityBuckets<IndexedWorker>
  readonly holders: Map<string, IndexedWorker[]>
  readonly ofImage: Map<string, CapacityBuckets<IndexedWorker>>
}

/** The kinds that satisfy one need, and the smallest sizes that none of them had room for: room only shrinks in a pool. */
type Candidates = { readonly kinds: readonly ProfileGroup[]; readonly refused: RequestedCapacity[] }

/** Makes a pool of workers by what is free on them. */
export function makeCapacityIndex(workers: readonly PlacementWorker[], policy: PlacementPolicy): CapacityIndex {
  const kinds = new Map<string, ProfileGroup>()
  const members = new Map<WorkerId, IndexedWorker>()
  const matches = new Map<string, Candidates>()
  const from = policy === 'pack' ? 'least' : 'most'
  let imageShelves = 0

  const kindOf = makeGroups(kinds)
  for (const { id, free_vcpus, free_memory_mib, abilities, storage, images } of workers) {
    const kind = kindOf({ abilities, storage })
    const member: IndexedWorker = { id, free_vcpus, free_memory_mib, kind, shelves: [kind.all] }
    members.set(id, member)
    kind.all.add(member, bucketOf(member))
    for (const image of images) {
      const holders = kind.holders.get(image)
      if (holders === undefined) kind.holders.set(image, [member])
      else holders.push(member)
    }
  }

  const matchOf = ({ abilities, volumes }: Needs): Candidates => {
    const key = `${String(volumes === null)} ${String(volumes?.needs_shared)} ${String(volumes?.needs_caps)} ${abilities.join(' ')}`
    const known = matches.get(key)
    if (known !== undefined) return known
    const made = { kinds: [...kinds.values()].filter((kind) => satisfies(kind, { abilities, volumes })), refused: [] }
    matches.set(key, made)
    return made
  }

  const shelfOf = (kind: ProfileGroup, image: string): CapacityBuckets<IndexedWorker> | null => {
    const known = kind.ofImage.get(image)
    if (known !== undefined) return known
    const holders = kind.holders.get(image) ?? []
    if (holders.length <= HOLDERS_CONSIDERED_MAX || imageShelves >= INDEXED_IMAGES_MAX) return null
    const shelf = makeCapacityBuckets<IndexedWorker>()
    for (const holder of holders) {
      shelf.add(holder, bucketOf(holder))
      holder.shelves.push(shelf)
    }
    imageShelves += 1
    kind.ofImage.set(image, shelf)
    return shelf
  }

  const findHolder = (kind: ProfileGroup, image: string, size: RequestedCapacity): IndexedWorker | null => {
    const shelf = shelfOf(kind, image)
    if (shelf !== null) return shelf.find(size, from)
    const looked = (kind.holders.get(image) ?? []).slice(0, HOLDERS_CONSIDERED_MAX)
    return preferred(policy, looked.filter((member) => hasCapacity(member, size))) // prettier-ignore
  }

  const choose = ({ kinds: able, refused }: Candidates, request: PlacementRequest): IndexedWorker | null => {
    const { vcpus, memory_mib, image } = request
    if (refused.some((size) => vcpus >= size.vcpus && memory_mib >= size.memory_mib)) return null
    if (image !== null) {
      const holder = preferred(policy, able.map((kind) => findHolder(kind, image, request))) // prettier-ignore
      if (holder !== null) return holder
    }
    const found = preferred(policy, able.map((kind) => kind.all.find(request, from))) // prettier-ignore
    if (found === null) {
      if (refused.length >= UNAVAILABLE_SIZES_MAX) refused.shift()
      refused.push({ vcpus, memory_mib })
    }
    return found
  }

  const chooseHome = (homes: ReadonlySet<WorkerId>, request: PlacementRequest): IndexedWorker | null => {
    const [home] = homes
    const member = home === undefined || homes.size > 1 ? undefined : members.get(home)
    return member !== undefined && satisfies(member.kind, request) && hasCapacity(member, request) ? member : null
  }

  return {
    largestFree: {
      vcpus: workers.reduce((most, { free_vcpus }) => Math.max(most, free_vcpus), 0),
      memory_mib: workers.reduce((most, { free_memory_mib }) => Math.max(most, free_memory_mib), 0),
    },
    allocate(request) {
      const homes = homeWorkersOf(request)
      const member = homes.size > 0 ? chooseHome(homes, request) : choose(matchOf(request), request)
      if (member === null) return null
      const before = bucketOf(member)
      member.free_vcpus -= request.vcpus
      member.free_memory_mib -= request.memory_mib
      const after = bucketOf(member)
      if (after === before && policy === 'pack') return member.id
      for (const shelf of member.shelves) {
        shelf.remove(member, before)
        shelf.add(member, after) // the last of its cell: equals take turns
      }
      return member.id
    },
  }
}

type Needs = Pick<PlacementRequest, 'abilities' | 'volumes'>

/** Finds or makes the kind of a worker. Workers that offer the same may share one list of abilities: it is read once. */
function makeGroups(
  kinds: Map<string, ProfileGroup>,
): (offer: Pick<PlacementWorker, 'abilities' | 'storage'>) => ProfileGroup {
  const keys = new Map<readonly string[], string>()
  return ({ abilities, storage }) => {
    const ofAbilities = keys.get(abilities) ?? abilities.toSorted().join(' ')
    keys.set(abilities, ofAbilities)
    const key = `${String(storage?.is_shared)} ${String(storage?.enforces_caps)} ${ofAbilities}`
    const known = kinds.get(key)
    if (known !== undefined) return known
    const all = makeCapacityBuckets<IndexedWorker>()
    const made: ProfileGroup = { abilities: new Set(abilities), storage, all, holders: new Map(), ofImage: new Map() }
    kinds.set(key, made)
    return made
  }
}

/** Whether workers of a kind can enforce what a request asks for, and reach its volumes wherever those lie. */
function satisfies({ abilities, storage }: Pick<ProfileGroup, 'abilities' | 'storage'>, needs: Needs): boolean {
  return (
    needs.abilities.every((ability) => abilities.has(ability)) &&
    (needs.volumes === null || storageSatisfies(storage, needs.volumes))
  )
}

function hasCapacity({ free_vcpus, free_memory_mib }: FreeCapacity, { vcpus, memory_mib }: RequestedCapacity): boolean {
  return free_vcpus >= vcpus && free_memory_mib >= memory_mib
}

/** The one that the policy prefers; of equals the first. */
function preferred(policy: PlacementPolicy, found: readonly (IndexedWorker | null)[]): IndexedWorker | null {
  let best: IndexedWorker | null = null
  for (const member of found) {
    if (member === null) continue
    const gain = best === null ? 1 : memoryLevel(member.free_memory_mib) - memoryLevel(best.free_memory_mib)
    if (best === null || (policy === 'pack' ? gain < 0 : gain > 0)) best = member
  }
  return best
}
