import { canonicalReference, parseImageReference } from '../../domain/spec/image-reference.ts'
import type { PlacementRequest, PlacementWorker, WorkerProfile } from '../../domain/workers/placement.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as capacity from '../../store/workers/capacity.ts'

/** A worker that may get runs, as placement reads it. */
export type NamedPlacementWorker = PlacementWorker & { readonly name: string }

/** The most profiles that are cached. */
const PROFILES_MAX = 50_000

/**
 * Makes a reader of the fleet: every worker that may get runs at a time, with its free capacity and its profile. A profile
 * that many workers share, or that was read before, is read once.
 */
export function makeFleetReader(): (q: Queryable, now: Date) => Promise<readonly NamedPlacementWorker[]> {
  const offers = new Map<string, WorkerProfile>()
  /** Equal lists of abilities become one list, so that they are compared once. */
  const lists = new Map<string, readonly string[]>()

  const learn = async (q: Queryable, names: ReadonlySet<string>): Promise<void> => {
    if (offers.size > PROFILES_MAX) {
      offers.clear()
      lists.clear()
    }
    const unknown = [...names].filter((name) => !offers.has(name))
    for (const { offer, driver, storage } of await capacity.workerProfiles(q, unknown)) {
      const abilities = driver?.abilities ?? []
      const key = abilities.join(' ')
      if (!lists.has(key)) lists.set(key, abilities)
      offers.set(offer, { abilities: lists.get(key) ?? abilities, storage, images: driver?.images ?? [] })
    }
  }

  return async (q, now) => {
    const found = await capacity.listFree(q, now)
    await learn(q, new Set(found.map(({ offer }) => offer)))
    // A worker whose profile changed between the two reads is in the next result.
    return found.flatMap((room) => {
      const offer = offers.get(room.offer)
      return offer === undefined ? [] : [{ ...room, ...offer }]
    })
  }
}

/** A run as placement reads it. */
export function placementRequestOf(run: capacity.PendingRun, defaultRegistry: string): PlacementRequest {
  const parsed = run.image === null ? null : parseImageReference(run.image, defaultRegistry)
  return { ...run, image: parsed?.ok === true ? canonicalReference(parsed.reference) : null }
}
