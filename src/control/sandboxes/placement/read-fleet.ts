import { abilitiesOf } from '../../../domain/workers/worker.ts'
import { isolationAbility } from '../../../domain/isolation.ts'
import type { ControlSettings } from '../../deps.ts'
import { canonicalReference, parseImageReference } from '../../../domain/spec/image-reference.ts'
import type { PlacementRequest, PlacementWorker, WorkerProfile } from '../../../domain/workers/placement.ts'
import type { Queryable } from '../../../store/postgres/database.ts'
import * as capacity from '../../../store/workers/capacity.ts'
import { takenPorts } from '../../../store/workers/taken-ports.ts'

/** A worker that may get runs, as placement reads it. */
export type NamedPlacementWorker = PlacementWorker & { readonly name: string }

/** The maximum number of worker profiles that are cached. */
const PROFILES_MAX = 50_000

/**
 * Makes a reader of the fleet. It returns every worker that may get runs at a given time, with its free capacity and
 * its profile. It reads each profile only once, even if many workers share it, and caches it.
 */
export function makeFleetReader(): (q: Queryable, now: Date) => Promise<readonly NamedPlacementWorker[]> {
  const profiles = new Map<string, WorkerProfile>()
  /** Equal lists of abilities become one shared array. The capacity index then compares each array only once. */
  const abilityLists = new Map<string, readonly string[]>()

  const loadProfiles = async (q: Queryable, hashes: ReadonlySet<string>): Promise<void> => {
    if (profiles.size > PROFILES_MAX) {
      profiles.clear()
      abilityLists.clear()
    }
    const unknown = [...hashes].filter((hash) => !profiles.has(hash))
    for (const { profile_hash, driver, storage } of await capacity.findProfiles(q, unknown)) {
      const abilities = driver === null ? [] : abilitiesOf(driver)
      const key = abilities.join(' ')
      if (!abilityLists.has(key)) abilityLists.set(key, abilities)
      profiles.set(profile_hash, {
        abilities: abilityLists.get(key) ?? abilities,
        storage,
        images: driver?.images ?? [],
        default_disk_mib: driver?.default_disk_mib ?? null,
        ...(driver?.publishes === undefined ? {} : { publishes: driver.publishes }),
      })
    }
  }

  return async (q, now) => {
    const [found, taken] = await Promise.all([capacity.listFree(q, now), takenPorts(q, null)])
    await loadProfiles(q, new Set(found.map(({ profile_hash }) => profile_hash)))
    // A worker whose profile changed between the two reads is left out. The next read returns it.
    return found.flatMap((worker) => {
      const profile = profiles.get(worker.profile_hash)
      if (profile === undefined) return []
      const free_disk_mib = freeDiskMib(worker, profile)
      return [{ ...worker, ...profile, free_disk_mib, taken_ports: taken.get(worker.id) ?? NO_PORTS }]
    })
  }
}

const NO_PORTS: readonly never[] = []

/** A worker of a version that doesn't report the size of its default disks has no limit that could be compared. */
function freeDiskMib(
  { disk_mib, sized_disks_mib, default_disks }: capacity.WorkerCapacity,
  { default_disk_mib }: WorkerProfile,
): number | null {
  if (disk_mib === null || default_disk_mib === null) return null
  return disk_mib - sized_disks_mib - default_disks * default_disk_mib
}

/** A run that needs no disk of its home, because another worker fetches what the disk is made from. */
export function awayFromHome(run: capacity.PendingRun): capacity.PendingRun {
  return { ...run, home_worker_id: null, abilities: [...run.abilities, 'snapshots'] }
}

/** The settings that change what a pending run needs. */
export type PlacementSettings = Pick<ControlSettings, 'defaultRegistry' | 'requireIsolation'>

/**
 * A pending run as a request for placement. The operator's demand for isolation also holds for sandboxes that were created
 * before the operator made it.
 */
export function placementRequestOf(run: capacity.PendingRun, settings: PlacementSettings): PlacementRequest {
  const { defaultRegistry, requireIsolation = null } = settings
  const parsed = run.image === null ? null : parseImageReference(run.image, defaultRegistry)
  const image = parsed?.ok === true ? canonicalReference(parsed.reference) : null
  const { ports, ...rest } = run
  const request = { ...rest, image, ...(ports === null ? {} : { ports }) }
  if (requireIsolation === null) return request
  return { ...request, abilities: [...run.abilities, isolationAbility(requireIsolation)] }
}
