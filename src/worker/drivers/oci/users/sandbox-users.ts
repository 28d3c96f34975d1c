import type { RunId } from '../../../../domain/ids.ts'
import type { IdRange } from '../../../../domain/workers/id-range.ts'
import type { Log } from '../../../../lib/log.ts'
import type { HostCommands } from '../../../processes/system-calls.ts'
import { StartError } from '../../../start-error.ts'
import type { HardLimits } from './rlimits.ts'
import { mountIdMap, namespaceIdMap } from './id-maps.ts'
import { makeIdRanges } from './id-ranges.ts'
import { findMappingFlaws, type MappedFolders, type MappingFlaws } from './mapping-flaws.ts'
import { makeUserNamespaces, type UserNamespace } from './user-namespaces.ts'

/** The host's ids of a run, which its record stores. */
export type RunIds = {
  /** The first of the 65,536 ids that no other live run holds. It owns the run's user namespace. */
  readonly range_first: number
  /** The host's id of the sandbox's user 0: `range_first`, or the id on disk if the run's mounts can't be idmapped. */
  readonly uid_shift: number
}

/** The ids and the namespaces for a run's start. */
export type RunUsers = RunIds & {
  /** The path of the user namespace that the runtime joins. Null if the runtime creates its own. */
  readonly namespacePath: string | null
  /** The path of the user namespace with the map of the run's idmapped mounts. Null if files appear with their ids on disk. */
  readonly mountMapPath: string | null
}

/** The sandboxes' users on the host. A run holds a range of ids from the first write of its record until its release. */
export type SandboxUsers = {
  readonly flaws: MappingFlaws
  /**
   * Allocates a range for a run and makes its namespaces. May be repeated. Rejects with `StartError` when every range is held.
   */
  assign(run: RunId, needs: { readonly hasVolumes: boolean }): Promise<RunUsers>
  /** Returns the users of a run that is being started. Throws for any other run. */
  of(run: RunId): RunUsers
  /** Closes the namespaces that were made for a run's start. The run's processes keep theirs. */
  closeNamespaces(run: RunId): void
  /** Frees a run's range. No process of the run may be left. */
  free(ids: RunIds): void
  /** Makes namespaces for the next starts until the pool is full. */
  fillPool(): Promise<void>
  /** The number of namespaces in the pool. */
  readonly pooledCount: number
  /** How many further runs may get a range. */
  readonly freeCount: number
  close(): void
}

type SandboxUsersInput = {
  /** The range of all sandboxes' ids. */
  readonly range: IdRange
  /** The ranges that recorded runs hold. */
  readonly held: readonly number[]
  /** The index of the range to try first. */
  readonly startAt: number
  /** The id on disk of the sandboxes' user 0. */
  readonly storedShift: number
  /** Whether the runtime can join a user namespace. One that can't creates its own, which belongs to the host's root. */
  readonly joinsNamespaces: boolean
  /** The limits of all users of a sandbox together. */
  readonly hardLimits: HardLimits
  readonly poolSize: number
  readonly folders: MappedFolders
  /** A folder for trial mounts. Its parent must exist. */
  readonly scratch: string
  readonly commands: Pick<HostCommands, 'callSystem'>
  readonly log: Log
}

/** A range and the namespaces that were made for it. */
type Kit = RunIds & { readonly own: UserNamespace | null; readonly mountMap: UserNamespace | null }

/** The most maps of mounts to keep for ranges that are used again. Each takes a file descriptor. */
const MOUNT_MAPS_KEPT = 64

/** Opens the users: tries what this machine can map. Logs once if sandboxes must share ids. */
export async function openSandboxUsers(input: SandboxUsersInput): Promise<SandboxUsers> {
  const { storedShift, joinsNamespaces, hardLimits, poolSize, log } = input
  const ranges = makeIdRanges(input)
  const starting = new Map<RunId, Kit>()
  const mountMaps = new Map<number, UserNamespace>()
  const pool = new Set<Promise<Kit>>()
  let isClosed = false
  const namespaces = makeUserNamespaces(log, () => {
    const lost = [...pool]
    pool.clear()
    mountMaps.clear()
    void Promise.allSettled(lost).then((kits) => {
      for (const kit of kits) if (kit.status === 'fulfilled') ranges.free(kit.value.range_first)
    })
  })
  const flaws = await findMappingFlaws({ ...input, namespaces }).catch((error: unknown) => {
    namespaces.close()
    throw error
  })
  for (const [what, flaw] of Object.entries(flaws))
    if (flaw !== null)
      log.warn({ what, flaw }, 'mounts can not be idmapped here: sandboxes with these mounts share user ids')

  const openMountMap = async (range_first: number): Promise<UserNamespace> => {
    const kept = mountMaps.get(range_first)
    mountMaps.delete(range_first) // a map has one user at a time, who keeps it again
    return kept ?? (await namespaces.create({ owner: 0, idMap: mountIdMap(storedShift, range_first), limits: null }))
  }
  const keepMountMap = (range_first: number, mountMap: UserNamespace): void => {
    if (!mountMap.isOpen()) return
    mountMaps.set(range_first, mountMap)
    const [oldest] = mountMaps
    if (oldest === undefined || mountMaps.size <= MOUNT_MAPS_KEPT) return
    mountMaps.delete(oldest[0])
    oldest[1].close()
  }
  const makeKit = async (range_first: number, isMapped: boolean): Promise<Kit> => {
    const uid_shift = isMapped ? range_first : storedShift
    try {
      const namespace = { owner: range_first, idMap: namespaceIdMap(uid_shift), limits: hardLimits }
      const [own, mountMap] = await Promise.all([
        joinsNamespaces ? namespaces.create(namespace) : null,
        isMapped ? openMountMap(range_first) : null,
      ])
      return { range_first, uid_shift, own, mountMap }
    } catch (error) {
      ranges.free(range_first)
      throw new StartError('host', "the sandbox's user namespace could not be made", error)
    }
  }
  /** Whether most runs can have idmapped mounts. The pool is for such runs. */
  const isUsuallyMapped = flaws.rootfs === null
  const takeFromPool = (): Promise<Kit> | undefined => {
    const [kit] = pool
    if (kit !== undefined) pool.delete(kit)
    return kit
  }
  const makeKitNow = async (isMapped: boolean): Promise<Kit> => {
    const range_first = ranges.allocate()
    if (range_first === null)
      throw new StartError('host', 'every range of user ids on this worker is in use (SANDYARD_UID_RANGE)')
    return await makeKit(range_first, isMapped)
  }

  const users: SandboxUsers = {
    flaws,
    async assign(run, { hasVolumes }) {
      const isMapped = isUsuallyMapped && !(hasVolumes && flaws.volumes !== null)
      if (!starting.has(run)) {
        const pooled = isMapped === isUsuallyMapped ? takeFromPool() : undefined
        starting.set(run, await (pooled ?? makeKitNow(isMapped)))
      }
      return users.of(run)
    },
    of(run) {
      const kit = starting.get(run)
      if (kit === undefined) throw new Error(`run ${run} is not being started`)
      const { range_first, uid_shift, own, mountMap } = kit
      return { range_first, uid_shift, namespacePath: own?.path ?? null, mountMapPath: mountMap?.path ?? null }
    },
    closeNamespaces(run) {
      const kit = starting.get(run)
      starting.delete(run)
      kit?.own?.close()
      if (kit !== undefined && kit.mountMap !== null) keepMountMap(kit.range_first, kit.mountMap)
    },
    free({ range_first }) {
      ranges.free(range_first)
    },
    async fillPool() {
      while (!isClosed && pool.size < poolSize) {
        const range_first = ranges.allocate()
        if (range_first === null) return
        // A start may take the namespaces while they are still made, so that the last free range is not withheld from it.
        const kit = makeKit(range_first, isUsuallyMapped)
        pool.add(kit)
        try {
          await kit
        } catch (error) {
          pool.delete(kit)
          throw error
        }
      }
    },
    get pooledCount() {
      return pool.size
    },
    get freeCount() {
      return ranges.freeCount + pool.size
    },
    close() {
      isClosed = true
      namespaces.close()
    },
  }
  return users
}

/** Describes for operators and clients whether sandboxes have user ids of their own. */
export function describeUserIds({ rootfs, volumes }: MappingFlaws): string {
  if (rootfs !== null) return `user ids shared by all sandboxes (${rootfs})`
  return volumes === null ? 'user ids of its own' : `user ids of its own, or shared if it mounts a volume (${volumes})`
}
