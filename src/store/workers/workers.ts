import type { Capacity, DriverReport, StorageReport } from '../../domain/workers/worker.ts'
import type { WorkerDisk } from '../../domain/workers/disk-pressure.ts'
import type { OrgId, WorkerId } from '../../domain/ids.ts'
import type { ReportPosition } from '../../domain/workers/lease.ts'
import type { AuthenticatedWorker, WorkerBounds } from '../../domain/workers/worker-bounds.ts'
import type { Queryable } from '../postgres/database.ts'

/** A worker with its profile, its capacity, and the capacity that its open runs use. */
export type WorkerRow = {
  readonly id: WorkerId
  readonly name: string
  readonly vcpus: number
  readonly memory_mib: number
  readonly used_vcpus: number
  readonly used_memory_mib: number
  readonly driver: DriverReport | null
  readonly storage: StorageReport | null
  /** Whether the worker is draining, and therefore gets no new runs. */
  readonly is_draining: boolean
  /** The organizations whose volumes it may get. Null: all. */
  readonly org_ids: readonly OrgId[] | null
}

/**
 * Inserts a worker, or replaces the credential of the existing worker with that name. Returns its id. May be repeated.
 */
export async function register(
  q: Queryable,
  worker: { readonly id: WorkerId; readonly name: string; readonly credentialSha256: Buffer; readonly now: Date },
): Promise<WorkerId> {
  const { rows } = await q.query<{ readonly id: WorkerId }>({
    text: `INSERT INTO workers (id, name, credential_sha256, created_at) VALUES ($1, $2, $3, $4)
           ON CONFLICT (name) WHERE removed_at IS NULL DO UPDATE SET credential_sha256 = excluded.credential_sha256 RETURNING id`,
    values: [worker.id, worker.name, worker.credentialSha256, worker.now],
  })
  const [row] = rows
  if (row === undefined) throw new Error('a registered worker has no row')
  return row.id
}

/**
 * The workers with these credentials, in the same order. Null for an unknown credential and for that of a removed
 * worker.
 */
export async function findByCredentials(
  q: Queryable,
  credentials: readonly Buffer[],
): Promise<readonly (AuthenticatedWorker | null)[]> {
  const { rows } = await q.query<{ readonly id: WorkerId | null; readonly bounds: WorkerBounds | null }>({
    name: 'workers.findByCredentials',
    text: `SELECT w.id, w.bounds FROM unnest($1::bytea[]) WITH ORDINALITY AS c(hash, n)
             LEFT JOIN workers w ON w.credential_sha256 = c.hash AND w.removed_at IS NULL ORDER BY c.n`,
    values: [credentials],
  })
  return rows.map(({ id, bounds }) => (id === null ? null : { id, bounds }))
}

/** The part of a report that is about the worker itself. */
export type WorkerReport = ReportPosition & {
  readonly capacity: Capacity
  readonly driver: DriverReport
  readonly storage: StorageReport
  /** Absent: the worker doesn't watch its disk. */
  readonly disk?: WorkerDisk
  /** What the worker claimed beyond its bounds, for operators. Absent or null: nothing. */
  readonly refused_claims?: string | null
  readonly now: Date
  readonly leaseExpiresAt: Date
}

/**
 * The start of the worker's drain, and the time at which its runs are asked to stop. Null: none. A draining worker gets
 * no new runs.
 */
export type DrainState = { readonly draining_since: Date | null; readonly drain_deadline_at: Date | null }

/** The result of recording a worker's report. */
export type RecordedWorkerReport = DrainState & {
  /** Whether there may now be capacity for waiting runs. */
  readonly adds_capacity: boolean
  /** Whether the last audit event about the worker's disk said that it is short. */
  readonly is_disk_short: boolean
}

/**
 * SQL: the generation of worker `w`. The database raises this number in each transaction that changes something that
 * the worker must know. See docs/decisions/0022.
 */
export const GENERATION = `coalesce((SELECT g.generation FROM worker_generations g WHERE g.worker_id = w.id), 0)`

/**
 * SQL: whether a report must be recorded because it is later than the last recorded one (`isLaterReport`). Once the
 * lease has expired, a report of an earlier incarnation is recorded too. A worker that has lost its data folder, on a
 * machine whose clock is behind, gets an incarnation that seems earlier.
 */
export const IS_LATER = ({ incarnation, seq, now }: Readonly<Record<'incarnation' | 'seq' | 'now', string>>): string =>
  `(w.life IS NULL OR (w.life, w.report_seq) < (${incarnation}, ${seq}) OR w.life > ${incarnation} AND w.lease_expires_at < ${now})`

/**
 * Records a worker's report about itself and extends its lease. Returns null and writes nothing when a later report was
 * recorded or the worker was removed. The row stays locked until the transaction ends. Therefore later reads in the
 * transaction are consistent with this report.
 */
export async function renew(tx: Queryable, id: WorkerId, report: WorkerReport): Promise<RecordedWorkerReport | null> {
  const { vcpus, memory_mib, disk_mib } = report.capacity
  const { rows } = await tx.query<RecordedWorkerReport>({
    name: 'workers.renew',
    text: `WITH old AS (SELECT lease_expires_at, vcpus, memory_mib, storage FROM workers WHERE id = $1)
           UPDATE workers w SET vcpus = $2, memory_mib = $3, disk_mib = $4, driver = $5, lease_expires_at = $6,
             life = $8, report_seq = $9, storage = $10, refused_claims = $11, disk = $12
           FROM old WHERE w.id = $1 AND w.removed_at IS NULL AND ${IS_LATER({ incarnation: '$8', seq: '$9', now: '$7' })}
           RETURNING w.draining_since, w.drain_deadline_at, w.is_disk_short, old.lease_expires_at IS NULL OR old.lease_expires_at < $7 OR old.vcpus < w.vcpus
             OR old.memory_mib < w.memory_mib OR old.storage IS DISTINCT FROM w.storage AS adds_capacity`,
    values: [
      id,
      vcpus,
      memory_mib,
      disk_mib,
      JSON.stringify(report.driver),
      report.leaseExpiresAt,
      report.now,
      report.incarnation,
      report.seq,
      JSON.stringify(report.storage),
      report.refused_claims ?? null,
      report.disk === undefined ? null : JSON.stringify(report.disk),
    ],
  })
  return rows[0] ?? null
}

/** Whether the last recorded report of a worker is from a later incarnation than this one. */
export async function isSuperseded(q: Queryable, id: WorkerId, incarnation: string): Promise<boolean> {
  const { rowCount } = await q.query({
    name: 'workers.isSuperseded',
    text: 'SELECT FROM workers WHERE id = $1 AND life > $2',
    values: [id, incarnation],
  })
  return rowCount === 1
}

/** The workers whose lease has not expired at `now`, with their used capacity. */
export async function listLive(q: Queryable, now: Date): Promise<readonly WorkerRow[]> {
  const { rows } = await q.query<WorkerRow>({
    name: 'workers.listLive',
    text: `SELECT w.id, w.name, w.vcpus, w.memory_mib, w.driver, w.storage, w.draining_since IS NOT NULL AS is_draining,
             w.bounds -> 'org_ids' AS org_ids,
             coalesce(u.vcpus, 0)::integer AS used_vcpus, coalesce(u.memory_mib, 0)::integer AS used_memory_mib
           FROM workers w LEFT JOIN (
             SELECT worker_id, sum(vcpus) AS vcpus, sum(memory_mib) AS memory_mib FROM runs
             WHERE ended_at IS NULL AND worker_id IS NOT NULL GROUP BY worker_id) u ON u.worker_id = w.id
           WHERE w.lease_expires_at > $1 AND w.removed_at IS NULL ORDER BY w.id`,
    values: [now],
  })
  return rows
}

/**
 * A worker that has not reported lately, and the position of its last report. An operator may have removed the worker.
 */
export type SilentWorker = {
  readonly id: WorkerId
  readonly name: string
  readonly is_removed: boolean
  readonly incarnation: string | null
  readonly report_seq: number
}

/**
 * Workers with open runs whose lease expires before `deadline`. Runs that go on without their worker have no lease: only an operator
 * who removes the worker ends them.
 */
export async function listSilent(q: Queryable, deadline: Date): Promise<readonly SilentWorker[]> {
  const { rows } = await q.query<SilentWorker>({
    name: 'workers.listSilent',
    text: `SELECT w.id, w.name, w.removed_at IS NOT NULL AS is_removed, w.life AS incarnation, w.report_seq
           FROM workers w WHERE coalesce(w.lease_expires_at, w.created_at) < $1
           AND (w.removed_at IS NOT NULL OR w.driver -> 'runs_outlive_worker' IS DISTINCT FROM 'true')
           AND EXISTS (SELECT 1 FROM runs r WHERE r.worker_id = w.id AND r.ended_at IS NULL)`,
    values: [deadline],
  })
  return rows
}

/** Drops what a worker reported about its runs, that they go on without it. */
export async function endRunsWithWorker(q: Queryable, id: WorkerId): Promise<void> {
  await q.query({ text: "UPDATE workers SET driver = driver - 'runs_outlive_worker' WHERE id = $1", values: [id] })
}

/**
 * Whether a worker has not reported since `listSilent` read it. If so, locks its row, so that its next report waits
 * until the transaction ends.
 */
export async function isSilentSince(tx: Queryable, { id, incarnation, report_seq }: SilentWorker): Promise<boolean> {
  const { rowCount } = await tx.query({
    name: 'workers.isSilentSince',
    text: 'SELECT FROM workers WHERE id = $1 AND life IS NOT DISTINCT FROM $2 AND report_seq = $3 FOR SHARE',
    values: [id, incarnation, report_seq],
  })
  return rowCount === 1
}

/** How a worker stores its volumes. `org_ids` are the organizations that it may serve. Null: all. */
export type WorkerStorage = {
  readonly id: WorkerId
  readonly storage: StorageReport
  readonly org_ids: readonly OrgId[] | null
}

/** How each worker that has reported stores its volumes. */
export async function listStorageReports(q: Queryable): Promise<readonly WorkerStorage[]> {
  const { rows } = await q.query<WorkerStorage>({
    name: 'workers.listStorageReports',
    text: `SELECT id, storage, bounds -> 'org_ids' AS org_ids FROM workers
           WHERE storage IS NOT NULL AND removed_at IS NULL ORDER BY id`,
  })
  return rows
}

/** Abilities that at least one worker's driver has. `org_ids` are the organizations that it may serve. Null: all. */
export type ReportedAbilities = {
  readonly abilities: readonly string[]
  /** False: its sandboxes lose their files when they stop. */
  readonly keeps_disks: boolean | null
  readonly org_ids: readonly OrgId[] | null
}

/** The abilities of every worker that has reported. A worker that is offline may return and run waiting sandboxes. */
export async function listAbilities(q: Queryable): Promise<readonly ReportedAbilities[]> {
  const { rows } = await q.query<ReportedAbilities>({
    name: 'workers.listAbilities',
    text: `SELECT DISTINCT driver -> 'abilities' AS abilities, driver -> 'keeps_disks' AS keeps_disks, bounds -> 'org_ids' AS org_ids
           FROM workers WHERE driver IS NOT NULL AND removed_at IS NULL`,
  })
  return rows
}
