/**
 * The free capacity of workers, their profiles, and the runs that need capacity. The used vCPUs and memory of a worker
 * are the sum of its open runs, and its used disk is the sum of its sandboxes' disks. Those sums are not stored.
 */
import { INT32_MAX } from '../../domain/requests/request-bounds.ts'
import type { OrgId, RunId, SandboxId, WorkerId } from '../../domain/ids.ts'
import type { LargestFree } from '../../domain/workers/capacity-index.ts'
import type { VolumeNeeds } from '../../domain/workers/placement.ts'
import { excludes, type PublishedPort } from '../../domain/spec/published-ports.ts'
import type { DriverReport, StorageReport } from '../../domain/workers/worker.ts'
import { NIL_UUID } from '../../lib/uuid.ts'
import { idRows } from '../postgres/column-list.ts'
import type { Queryable } from '../postgres/database.ts'
import { SPEC_PARTS } from '../sandboxes/sandboxes.ts'
import { NEEDS_OF_VOLUMES } from '../volumes/volume-mounts.ts'
import { takenPorts } from './taken-ports.ts'
import { DISK_CAPACITY, DISK_SUMS, DISKS } from './disk-use.ts'

/** The disks on a worker. */
type DiskUse = {
  /** The sum of the sizes that sandboxes name. */
  readonly sized_disks_mib: number
  /** How many disks have the worker's default size. */
  readonly default_disks: number
}

/** A worker that may get new runs. */
export type WorkerCapacity = DiskUse & {
  readonly id: WorkerId
  readonly name: string
  readonly free_vcpus: number
  readonly free_memory_mib: number
  /** The worker's disk capacity, whatever is used of it. Null: not limited. */
  readonly disk_mib: number | null
  /** Whether its file system is full up to its reserve. */
  readonly is_disk_short: boolean
  /** The hash of the worker's profile: see `findProfiles`. */
  readonly profile_hash: string
  /** The organizations whose runs it may get. Null: all. */
  readonly org_ids: readonly OrgId[] | null
}

/**
 * The workers that may get new runs at `now`: their lease has not expired, and they are neither draining nor removed.
 */
export async function listFree(q: Queryable, now: Date): Promise<readonly WorkerCapacity[]> {
  const { rows } = await q.query<WorkerCapacity>({
    name: 'capacity.listFree',
    text: `SELECT w.id, w.name, w.offer AS profile_hash, w.bounds -> 'org_ids' AS org_ids, (w.vcpus - coalesce(u.vcpus, 0))::integer AS free_vcpus,
             (w.memory_mib - coalesce(u.memory_mib, 0))::integer AS free_memory_mib,
             w.disk_mib::float8, w.is_disk_short, coalesce(d.sized_disks_mib, 0) AS sized_disks_mib,
             coalesce(d.default_disks, 0) AS default_disks
           FROM workers w LEFT JOIN (
             SELECT worker_id, sum(vcpus) AS vcpus, sum(memory_mib) AS memory_mib FROM runs
             WHERE ended_at IS NULL AND worker_id IS NOT NULL GROUP BY worker_id) u ON u.worker_id = w.id
           LEFT JOIN (SELECT worker_id, ${DISK_SUMS} FROM (${DISKS}) a GROUP BY worker_id) d ON d.worker_id = w.id
           WHERE w.lease_expires_at > $1 AND ${MAY_GET_RUNS} ORDER BY w.id`,
    values: [now],
  })
  return rows
}

const MAY_GET_RUNS = 'w.draining_since IS NULL AND w.removed_at IS NULL'

/** The profile of a worker: its capabilities other than capacity. */
export type WorkerProfileRow = {
  readonly profile_hash: string
  readonly driver: DriverReport | null
  readonly storage: StorageReport | null
}

/** The profiles with these hashes. A profile that no worker has any more is left out. */
export async function findProfiles(q: Queryable, hashes: readonly string[]): Promise<readonly WorkerProfileRow[]> {
  if (hashes.length === 0) return []
  const { rows } = await q.query<WorkerProfileRow>({
    name: 'capacity.workerProfiles',
    text: `SELECT DISTINCT ON (offer) offer AS profile_hash, driver, storage FROM workers WHERE offer = ANY($1::text[]) ORDER BY offer`,
    values: [hashes],
  })
  return rows
}

/** The capacity of a worker that a run would use. */
export type Reservation = {
  readonly worker_id: WorkerId
  readonly vcpus: number
  readonly memory_mib: number
  /** The size of the disk that the run needs there. Null: the worker's default size. 0: its disk is there already. */
  readonly disk_mib: number | null
  /** The ports of the worker's machine that the run gets. Absent: none. */
  readonly ports?: readonly PublishedPort[]
}

/** What is free on workers whose rows are locked. Each reservation takes from it. */
export type FreeCapacity = {
  /**
   * Tries reservations in order, and returns for each whether it succeeded. A reservation succeeds if its worker may get runs
   * and has enough capacity left after the earlier reservations.
   */
  reserve(reservations: readonly Reservation[]): readonly boolean[]
}

/**
 * Locks workers until the transaction ends, so that other transactions see its reservations, and reads what is free there.
 * Placements are chosen from a snapshot that may be old. Only this check ensures that no worker gets more runs than it has
 * capacity for.
 */
export async function lockFree(
  tx: Queryable,
  workers: readonly Pick<Reservation, 'worker_id' | 'ports'>[],
  now: Date,
): Promise<FreeCapacity> {
  const ids = [...new Set(workers.map(({ worker_id }) => worker_id))]
  const publishing = workers.filter(({ ports }) => ports !== undefined).map(({ worker_id }) => worker_id)
  const [{ rows: locked }, { rows: used }, taken] = await Promise.all([
    tx.query<ReservableWorker>({
      name: 'capacity.lock',
      isRead: true,
      text: `SELECT w.id, w.vcpus, w.memory_mib, ${DISK_CAPACITY} FROM workers w
           WHERE w.id = ANY($1::uuid[]) AND w.lease_expires_at > $2 AND ${MAY_GET_RUNS} ORDER BY w.id FOR NO KEY UPDATE`,
      values: [ids, now],
    }),
    // A second statement, after the locks, also sees the runs that earlier holders of the locks have committed.
    tx.query<UsedCapacity>({
      name: 'capacity.used',
      isRead: true,
      text: `SELECT w.id AS worker_id, u.vcpus, u.memory_mib, d.sized_disks_mib, d.default_disks
           FROM ${idRows('$1', 'w')},
             LATERAL (SELECT coalesce(sum(vcpus), 0)::integer AS vcpus, coalesce(sum(memory_mib), 0)::integer AS memory_mib
               FROM runs WHERE worker_id = w.id AND ended_at IS NULL) u,
             LATERAL (SELECT ${DISK_SUMS} FROM (${DISKS}) a WHERE a.worker_id = w.id) d`,
      values: [ids],
    }),
    takenPorts(tx, publishing),
  ])
  const usedOn = new Map(used.map((one) => [one.worker_id, one]))
  const left = new Map(locked.map((worker) => [worker.id, leftOf(worker, usedOn.get(worker.id))]))
  const tryOne = ({ worker_id, vcpus, memory_mib, disk_mib, ports = [] }: Reservation): boolean => {
    const worker = left.get(worker_id)
    if (worker === undefined) return false
    const diskMib = disk_mib ?? worker.default_disk_mib
    const fits =
      worker.vcpus >= vcpus && worker.memory_mib >= memory_mib && (diskMib === 0 || worker.disk_mib >= diskMib)
    const takenThere = taken.get(worker_id) ?? []
    if (!fits || ports.some((port) => takenThere.some((one) => excludes(one, port)))) return false
    if (ports.length > 0) taken.set(worker_id, [...takenThere, ...ports])
    worker.vcpus -= vcpus
    worker.memory_mib -= memory_mib
    worker.disk_mib -= diskMib
    return true
  }
  return { reserve: (reservations) => reservations.map(tryOne) }
}

type ReservableWorker = {
  readonly id: WorkerId
  readonly vcpus: number
  readonly memory_mib: number
  readonly disk_mib: number | null
  readonly default_disk_mib: number
}

type UsedCapacity = Pick<Reservation, 'worker_id' | 'vcpus' | 'memory_mib'> & DiskUse

function leftOf({ vcpus, memory_mib, disk_mib, default_disk_mib }: ReservableWorker, used: UsedCapacity | undefined) {
  const usedDiskMib = (used?.sized_disks_mib ?? 0) + (used?.default_disks ?? 0) * default_disk_mib
  return {
    vcpus: vcpus - (used?.vcpus ?? 0),
    memory_mib: memory_mib - (used?.memory_mib ?? 0),
    disk_mib: (disk_mib ?? Infinity) - usedDiskMib,
    default_disk_mib,
  }
}

const IS_PENDING = 'r.ended_at IS NULL AND r.worker_id IS NULL'
const IS_NEW = `${IS_PENDING} AND r.waits_since IS NULL`
export const IS_WAITING = `${IS_PENDING} AND r.waits_since IS NOT NULL`

/** Whether there are waiting runs. A placement pass has already tried a waiting run, but not a new one. */
export async function hasWaiting(q: Queryable): Promise<boolean> {
  const { rows } = await q.query<{ readonly has_waiting: boolean }>({
    name: 'capacity.hasWaiting',
    isRead: true,
    text: `SELECT EXISTS (SELECT 1 FROM runs r WHERE ${IS_WAITING}) AS has_waiting`,
  })
  return rows[0]?.has_waiting ?? false
}

/** A run that needs a worker. */
export type PendingRun = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly org_id: OrgId
  /** Text, because a Date would cut off digits that decide the order of runs. */
  readonly opened_at: string
  readonly vcpus: number
  readonly memory_mib: number
  /** The size of the sandbox's disk. Null: the worker's default size. */
  readonly disk_mib: number | null
  readonly abilities: readonly string[]
  /** The worker that stores the sandbox's writable layer. The run can be placed on no other worker. */
  readonly home_worker_id: WorkerId | null
  /**
   * Whether another worker may fetch the snapshot that its disk is made from: no run of the sandbox was ever placed. A placed run
   * may have made the disk and written to it, even if its worker never reported that it ran.
   */
  readonly may_fetch: boolean
  /**
   * The run's image, as the request spelled it. Null if another program wrote the row; such a row must not block other
   * runs.
   */
  readonly image: string | null
  /** Whether a placement pass found that no worker has the capacity. */
  readonly is_waiting: boolean
  /** The requirements of the run's volumes. Null: it mounts none. */
  readonly volumes: VolumeNeeds | null
  /** The ports that the run publishes. Null: none. */
  readonly ports: readonly PublishedPort[] | null
}

export const PENDING_RUN = `r.id AS run_id, r.sandbox_id, s.org_id, r.opened_at::text, r.vcpus, r.memory_mib, s.disk_size_mib AS disk_mib, s.abilities, s.home_worker_id,
  ${SPEC_PARTS} ->> 'image' AS image, ${SPEC_PARTS} -> 'network' -> 'ports' AS ports, r.waits_since IS NOT NULL AS is_waiting, n.needs AS volumes,
  s.snapshot_id IS NOT NULL AND NOT EXISTS (SELECT FROM runs e WHERE e.sandbox_id = s.id AND e.worker_id IS NOT NULL) AS may_fetch`

/** The range of a page of pending runs. */
export type PendingPage = {
  readonly after: Pick<PendingRun, 'opened_at' | 'run_id'> | null
  readonly limit: number
  /** The largest size of waiting runs to include. Null: no waiting runs. */
  readonly waitingUpTo: LargestFree | null
}

/** A run without a size (0) needs a default disk. A run of a sandbox with a disk needs no other. */
const DISK_MAY_FIT = `(CASE WHEN r.disk_mib = 0 THEN $7 ELSE r.disk_mib <= $6 END
  OR EXISTS (SELECT FROM sandboxes h WHERE h.id = r.sandbox_id AND h.home_worker_id IS NOT NULL))`

function largestOf({ vcpus, memory_mib, disk_mib, has_default_disk }: LargestFree): readonly unknown[] {
  return [vcpus, memory_mib, Math.min(disk_mib, INT32_MAX), has_default_disk]
}

/**
 * The oldest runs without a worker, after a given run. Waiting runs that are too large are skipped by the index alone,
 * without reading their rows. Skipping 100,000 of them takes 30 ms. It took 2 s when each row was read (2026-11, 2
 * cores).
 */
export async function pending(q: Queryable, page: PendingPage): Promise<readonly PendingRun[]> {
  const { after, limit, waitingUpTo } = page
  const isAfter = '(r.opened_at, r.id) > ($1::timestamptz, $2::uuid)'
  const waiting = `UNION ALL (SELECT r.id, r.opened_at FROM runs r WHERE ${IS_WAITING} AND r.vcpus <= $4 AND r.memory_mib <= $5
    AND ${DISK_MAY_FIT} AND ${isAfter} ORDER BY r.opened_at, r.id LIMIT $3) ORDER BY opened_at, id LIMIT $3`
  const { rows } = await q.query<PendingRun>({
    name: `capacity.pending.${waitingUpTo === null ? 'new' : 'all'}`,
    text: `WITH due AS MATERIALIZED (
             (SELECT r.id, r.opened_at FROM runs r WHERE ${IS_NEW} AND ${isAfter} ORDER BY r.opened_at, r.id LIMIT $3)
             ${waitingUpTo === null ? '' : waiting})
           SELECT ${PENDING_RUN}
           FROM due JOIN runs r ON r.id = due.id JOIN sandboxes s ON s.id = r.sandbox_id
             CROSS JOIN LATERAL (${NEEDS_OF_VOLUMES}) n
           WHERE ${IS_PENDING} ORDER BY due.opened_at, due.id`,
    values: [
      after?.opened_at ?? '-infinity',
      after?.run_id ?? NIL_UUID,
      limit,
      ...(waitingUpTo === null ? [] : largestOf(waitingUpTo)),
    ],
  })
  return rows
}
