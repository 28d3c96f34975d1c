import { canonicalReference, parseImageReference } from '../../domain/spec/image-reference.ts'
import type { PlacementRequest, PlacementWorker, WorkerProfile } from '../../domain/workers/placement.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as capacity from '../../store/workers/capacity.ts'

/** A worker that may get runs, as placement takes it. */
export type NamedPlacementWorker = PlacementWorker & { readonly name: string }

/** The most offers that are remembered. */
const PROFILES_MAX = 50_000

/**
 * Makes a reader of the fleet: every worker that may get runs at a time, with its free room and what it offers. What many
 * workers offer alike, and what was read before, is read once.
 */
export function makeFleetReader(): (q: Queryable, now: Date) => Promise<readonly NamedPlacementWorker[]> {
  const offers = new Map<string, WorkerProfile>()
  /** Equal lists of abilities are one list, so that they are compared once. */
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
    // A worker whose offer changed between the two reads is met the next time.
    return found.flatMap((room) => {
      const offer = offers.get(room.offer)
      return offer === undefined ? [] : [{ ...room, ...offer }]
    })
  }
}

/** A run as placement takes it. */
export function placementRequestOf(run: capacity.PendingRun, defaultRegistry: string): PlacementRequest {
  const parsed = run.image === null ? null : parseImageReference(run.image, defaultRegistry)
  return { ...run, image: parsed?.ok === true ? canonicalReference(parsed.reference) : null }
}
