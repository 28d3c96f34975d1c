import type { WorkerId } from '../domain/ids.ts'
import { canonicalReference, parseImageReference } from '../domain/image-reference.ts'
import type { PlacementPolicy, PlacementRequest, WorkerOffer } from '../domain/placement.ts'
import { makePool, type Pool } from '../domain/placement/pool.ts'
import type { Clock } from '../lib/clock.ts'
import type { Database } from '../store/database.ts'
import * as rooms from '../store/rooms.ts'

/**
 * The free room of the fleet as a loop knows it: read from the tables, and from then on less what the loop itself gave
 * away. It may be out of date, which costs a place that is refused or found later and nothing else: that a worker has
 * room is settled in the transaction that places.
 */
export type FleetPicture = {
  /** Reads the tables, unless they were read so short a time ago that it would take more than a tenth of the time; then: false. */
  refresh(): Promise<boolean>
  /** How long until they may be read again, in milliseconds. */
  restMs(): number
  /** Gives up what is known: nobody knows what became of what was given away. */
  forget(): void
  /** The free room. Throws before the first `refresh`. */
  readonly pool: Pool
  nameOf(worker: WorkerId): string
  /** A run as placement takes it. */
  requestOf(run: rooms.PendingRun): PlacementRequest
}

export type PictureDeps = {
  readonly db: Database
  readonly clock: Clock
  readonly settings: { readonly placement: PlacementPolicy; readonly defaultRegistry: string }
}

/** The part of the time that reading the tables may take: with 10,000 workers and 100,000 runs it takes 0.1 s or more. */
const REST_FOR_COST = 9
/** The most offers that are remembered. */
const OFFERS_MAX = 50_000

/** Makes a picture that knows nothing yet. */
export function makeFleetPicture({ db, clock, settings }: PictureDeps): FleetPicture {
  let known: { readonly pool: Pool; readonly names: ReadonlyMap<WorkerId, string> } | null = null
  let dueAtMs = Number.NEGATIVE_INFINITY
  const offers = new Map<string, WorkerOffer>()
  /** Equal lists of abilities are one list, so that they are compared once. */
  const lists = new Map<string, readonly string[]>()

  const learnOffers = async (q: Parameters<typeof rooms.offers>[0], names: ReadonlySet<string>): Promise<void> => {
    if (offers.size > OFFERS_MAX) offers.clear()
    const unknown = [...names].filter((name) => !offers.has(name))
    for (const { offer, driver, storage } of await rooms.offers(q, unknown)) {
      const abilities = driver?.abilities ?? []
      const key = abilities.join(' ')
      if (!lists.has(key)) lists.set(key, abilities)
      offers.set(offer, { abilities: lists.get(key) ?? abilities, storage, images: driver?.images ?? [] })
    }
  }

  return {
    async refresh() {
      const fromMs = clock.monotonicMs()
      if (known !== null && fromMs < dueAtMs) return false
      known = await db.asSystem(async (q) => {
        const found = await rooms.free(q, clock.now())
        await learnOffers(q, new Set(found.map(({ offer }) => offer)))
        // A worker whose offer changed between the two reads is in the next picture.
        const workers = found.flatMap((room) => {
          const offer = offers.get(room.offer)
          return offer === undefined ? [] : [{ ...room, ...offer }]
        })
        return { pool: makePool(workers, settings.placement), names: new Map(found.map(({ id, name }) => [id, name])) }
      })
      const nowMs = clock.monotonicMs()
      dueAtMs = nowMs + (nowMs - fromMs) * REST_FOR_COST
      return true
    },
    restMs: () => Math.max(0, dueAtMs - clock.monotonicMs()),
    forget() {
      known = null
    },
    get pool() {
      if (known === null) throw new Error('the picture of the fleet was not read yet')
      return known.pool
    },
    nameOf: (worker) => known?.names.get(worker) ?? worker,
    requestOf: ({ image, ...run }) => {
      const parsed = parseImageReference(image, settings.defaultRegistry)
      return { ...run, image: parsed.ok ? canonicalReference(parsed.reference) : null }
    },
  }
}
