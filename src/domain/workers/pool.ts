import type { WorkerId } from '../ids.ts'
import { canKeep, homesOf, type PlacementPolicy, type PlacementRequest, type PlacementWorker } from './placement.ts'
import { cellOf, makeShelf, memoryLevel, type Room, type Shelf, type Size } from './shelf.ts'

/** The free room of a fleet. */
export type Pool = {
  /**
   * The worker that a request goes to, whose room is taken then; null: none has room for it now. A worker never gets more
   * than it has. Of the workers that can run it, one that holds its image comes first, then the policy decides.
   */
  take(request: PlacementRequest): WorkerId | null
  /** No worker had more free than this, of either, when the pool was made. */
  readonly most: Size
}

/** The images that get a shelf of their own, which must be kept in order; of others only the first holders are looked at. */
const IMAGE_SHELVES_MAX = 64
const HOLDERS_LOOKED_AT = 32
/** How many sizes that had no room are remembered for each kind of need. */
const REFUSED_MAX = 16

type Member = Room & { readonly id: WorkerId; readonly kind: Kind; readonly shelves: Shelf<Member>[] }

/** Workers that can do the same. */
type Kind = {
  readonly abilities: ReadonlySet<string>
  readonly storage: PlacementWorker['storage']
  readonly all: Shelf<Member>
  readonly holders: Map<string, Member[]>
  readonly ofImage: Map<string, Shelf<Member>>
}

/** The kinds that satisfy one need, and the smallest sizes that none of them had room for: room only shrinks in a pool. */
type Match = { readonly kinds: readonly Kind[]; readonly refused: Size[] }

/** Makes a pool of workers by what is free on them. */
export function makePool(workers: readonly PlacementWorker[], policy: PlacementPolicy): Pool {
  const kinds = new Map<string, Kind>()
  const members = new Map<WorkerId, Member>()
  const matches = new Map<string, Match>()
  const from = policy === 'pack' ? 'least' : 'most'
  let imageShelves = 0

  const kindOf = makeKinds(kinds)
  for (const { id, free_vcpus, free_memory_mib, abilities, storage, images } of workers) {
    const kind = kindOf({ abilities, storage })
    const member: Member = { id, free_vcpus, free_memory_mib, kind, shelves: [kind.all] }
    members.set(id, member)
    kind.all.add(member, cellOf(member))
    for (const image of images) {
      const holders = kind.holders.get(image)
      if (holders === undefined) kind.holders.set(image, [member])
      else holders.push(member)
    }
  }

  const matchOf = ({ abilities, volumes }: Needs): Match => {
    const key = `${String(volumes === null)} ${String(volumes?.needs_shared)} ${String(volumes?.needs_caps)} ${abilities.join(' ')}`
    const known = matches.get(key)
    if (known !== undefined) return known
    const made = { kinds: [...kinds.values()].filter((kind) => canDo(kind, { abilities, volumes })), refused: [] }
    matches.set(key, made)
    return made
  }

  const shelfOf = (kind: Kind, image: string): Shelf<Member> | null => {
    const known = kind.ofImage.get(image)
    if (known !== undefined) return known
    const holders = kind.holders.get(image) ?? []
    if (holders.length <= HOLDERS_LOOKED_AT || imageShelves >= IMAGE_SHELVES_MAX) return null
    const shelf = makeShelf<Member>()
    for (const holder of holders) {
      shelf.add(holder, cellOf(holder))
      holder.shelves.push(shelf)
    }
    imageShelves += 1
    kind.ofImage.set(image, shelf)
    return shelf
  }

  const findHolder = (kind: Kind, image: string, size: Size): Member | null => {
    const shelf = shelfOf(kind, image)
    if (shelf !== null) return shelf.find(size, from)
    const looked = (kind.holders.get(image) ?? []).slice(0, HOLDERS_LOOKED_AT)
    return better(policy, looked.filter((member) => hasRoom(member, size))) // prettier-ignore
  }

  const choose = ({ kinds: able, refused }: Match, request: PlacementRequest): Member | null => {
    const { vcpus, memory_mib, image } = request
    if (refused.some((size) => vcpus >= size.vcpus && memory_mib >= size.memory_mib)) return null
    if (image !== null) {
      const holder = better(policy, able.map((kind) => findHolder(kind, image, request))) // prettier-ignore
      if (holder !== null) return holder
    }
    const found = better(policy, able.map((kind) => kind.all.find(request, from))) // prettier-ignore
    if (found === null) {
      if (refused.length >= REFUSED_MAX) refused.shift()
      refused.push({ vcpus, memory_mib })
    }
    return found
  }

  const chooseHome = (homes: ReadonlySet<WorkerId>, request: PlacementRequest): Member | null => {
    const [home] = homes
    const member = home === undefined || homes.size > 1 ? undefined : members.get(home)
    return member !== undefined && canDo(member.kind, request) && hasRoom(member, request) ? member : null
  }

  return {
    most: {
      vcpus: workers.reduce((most, { free_vcpus }) => Math.max(most, free_vcpus), 0),
      memory_mib: workers.reduce((most, { free_memory_mib }) => Math.max(most, free_memory_mib), 0),
    },
    take(request) {
      const homes = homesOf(request)
      const member = homes.size > 0 ? chooseHome(homes, request) : choose(matchOf(request), request)
      if (member === null) return null
      const before = cellOf(member)
      member.free_vcpus -= request.vcpus
      member.free_memory_mib -= request.memory_mib
      const after = cellOf(member)
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
function makeKinds(kinds: Map<string, Kind>): (offer: Pick<PlacementWorker, 'abilities' | 'storage'>) => Kind {
  const keys = new Map<readonly string[], string>()
  return ({ abilities, storage }) => {
    const ofAbilities = keys.get(abilities) ?? abilities.toSorted().join(' ')
    keys.set(abilities, ofAbilities)
    const key = `${String(storage?.is_shared)} ${String(storage?.enforces_caps)} ${ofAbilities}`
    const known = kinds.get(key)
    if (known !== undefined) return known
    const all = makeShelf<Member>()
    const made: Kind = { abilities: new Set(abilities), storage, all, holders: new Map(), ofImage: new Map() }
    kinds.set(key, made)
    return made
  }
}

/** Whether workers of a kind can enforce what a request asks for, and reach its volumes wherever those lie. */
function canDo({ abilities, storage }: Pick<Kind, 'abilities' | 'storage'>, needs: Needs): boolean {
  return (
    needs.abilities.every((ability) => abilities.has(ability)) &&
    (needs.volumes === null || canKeep(storage, needs.volumes))
  )
}

function hasRoom({ free_vcpus, free_memory_mib }: Room, { vcpus, memory_mib }: Size): boolean {
  return free_vcpus >= vcpus && free_memory_mib >= memory_mib
}

/** The one that the policy prefers; of equals the first. */
function better(policy: PlacementPolicy, found: readonly (Member | null)[]): Member | null {
  let best: Member | null = null
  for (const member of found) {
    if (member === null) continue
    const gain = best === null ? 1 : memoryLevel(member.free_memory_mib) - memoryLevel(best.free_memory_mib)
    if (best === null || (policy === 'pack' ? gain < 0 : gain > 0)) best = member
  }
  return best
}
