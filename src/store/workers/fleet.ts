/** Workers as operators see them: their identity, drain and removal, and the data that only they store. */
import type { VolumeId, WorkerId } from '../../domain/ids.ts'
import type { WorkerBounds } from '../../domain/workers/worker-bounds.ts'
import { NIL_UUID } from '../../lib/uuid.ts'
import type { Queryable } from '../postgres/database.ts'
import { DISK_CAPACITY, DISK_SUMS, DISKS } from './disk-use.ts'

/** The identity of a worker. */
export type WorkerIdentity = {
  readonly id: WorkerId
  readonly name: string
  readonly credential_sha256: Buffer
  readonly lease_expires_at: Date | null
  readonly removed_at: Date | null
}

const KNOWN = 'id, name, credential_sha256, lease_expires_at, removed_at'

/** The worker with this id. */
export async function find(q: Queryable, id: WorkerId): Promise<WorkerIdentity | null> {
  const { rows } = await q.query<WorkerIdentity>({ text: `SELECT ${KNOWN} FROM workers WHERE id = $1`, values: [id] })
  return rows[0] ?? null
}

/** The worker with this credential. Removed workers are included. */
export async function findByCredential(q: Queryable, credentialSha256: Buffer): Promise<WorkerIdentity | null> {
  const { rows } = await q.query<WorkerIdentity>({
    text: `SELECT ${KNOWN} FROM workers WHERE credential_sha256 = $1 ORDER BY removed_at DESC NULLS FIRST LIMIT 1`,
    values: [credentialSha256],
  })
  return rows[0] ?? null
}

/** A machine that becomes a worker. */
export type NewWorker = {
  readonly id: WorkerId
  readonly name: string
  readonly credentialSha256: Buffer
  readonly bounds: WorkerBounds | null
  readonly now: Date
}

/** Inserts a worker. Returns false when a worker that was not removed has the same name or credential. */
export async function insert(tx: Queryable, worker: NewWorker): Promise<boolean> {
  const bounds = worker.bounds === null ? null : JSON.stringify(worker.bounds)
  const { rowCount } = await tx.query({
    text: `INSERT INTO workers (id, name, credential_sha256, created_at, bounds) VALUES ($1, $2, $3, $4, $5)
           ON CONFLICT DO NOTHING`,
    values: [worker.id, worker.name, worker.credentialSha256, worker.now, bounds],
  })
  return rowCount > 0
}

/** The current worker with this name, locked until the transaction ends, or null. */
export async function lockNamed(tx: Queryable, name: string): Promise<WorkerIdentity | null> {
  const { rows } = await tx.query<WorkerIdentity>({
    text: `SELECT ${KNOWN} FROM workers WHERE name = $1 AND removed_at IS NULL FOR UPDATE`,
    values: [name],
  })
  return rows[0] ?? null
}

/** A worker as `sandyard worker list` shows it. */
export type ListedWorker = {
  readonly id: WorkerId
  readonly name: string
  readonly driver: string | null
  /** The abilities of its driver. Null before its first report. */
  readonly abilities: readonly string[] | null
  readonly vcpus: number
  readonly memory_mib: number
  readonly used_vcpus: number
  readonly used_memory_mib: number
  /** Null: not limited. */
  readonly disk_mib: number | null
  /** The sizes of all disks, those of stopped sandboxes included. */
  readonly used_disk_mib: number
  readonly runs: number
  readonly created_at: Date
  readonly lease_expires_at: Date | null
  readonly draining_since: Date | null
  readonly drain_deadline_at: Date | null
  readonly removed_at: Date | null
  readonly bounds: WorkerBounds | null
  /** What its last report claimed beyond its bounds. Null: nothing. */
  readonly refused_claims: string | null
}

/** Workers after a given one, in the order in which they joined. */
export async function list(
  q: Queryable,
  after: WorkerId | null,
  limit: number,
  { isRemovedToo }: { readonly isRemovedToo: boolean },
): Promise<readonly ListedWorker[]> {
  const { rows } = await q.query<ListedWorker>({
    text: `SELECT w.id, w.name, w.driver ->> 'name' AS driver, w.driver -> 'abilities' AS abilities, w.vcpus, w.memory_mib, w.created_at, w.lease_expires_at,
             w.draining_since, w.drain_deadline_at, w.removed_at, w.bounds, w.refused_claims, u.runs::integer AS runs,
             coalesce(u.vcpus, 0)::integer AS used_vcpus, coalesce(u.memory_mib, 0)::integer AS used_memory_mib,
             c.disk_mib, d.sized_disks_mib + d.default_disks * c.default_disk_mib AS used_disk_mib
           FROM workers w CROSS JOIN LATERAL (
             SELECT count(*) AS runs, sum(vcpus) AS vcpus, sum(memory_mib) AS memory_mib FROM runs r
             WHERE r.worker_id = w.id AND r.ended_at IS NULL) u
           CROSS JOIN LATERAL (SELECT ${DISK_CAPACITY}) c
           CROSS JOIN LATERAL (SELECT ${DISK_SUMS} FROM (${DISKS}) a WHERE a.worker_id = w.id) d
           WHERE w.id > $1 AND (w.removed_at IS NULL OR $3) ORDER BY w.id LIMIT $2`,
    values: [after ?? NIL_UUID, limit, isRemovedToo],
  })
  return rows
}

/** Starts a drain or changes its deadline. Null ends the drain. May be repeated. */
export async function setDrain(
  tx: Queryable,
  id: WorkerId,
  drain: { readonly since: Date; readonly deadline_at: Date | null } | null,
): Promise<void> {
  await tx.query({
    text: `UPDATE workers SET draining_since = CASE WHEN $2::timestamptz IS NULL THEN NULL ELSE coalesce(draining_since, $2) END,
             drain_deadline_at = $3 WHERE id = $1`,
    values: [id, drain?.since ?? null, drain?.deadline_at ?? null],
  })
}

/** The data that only this worker stores. */
export type Holdings = {
  readonly runs: number
  /** Sandboxes whose writable layer is stored on this worker. */
  readonly sandboxes: number
  readonly volumes: number
  /** The names of the first sandboxes and of the first volumes. */
  readonly sandbox_names: readonly string[]
  readonly volume_names: readonly string[]
  readonly snapshots: number
  readonly snapshot_names: readonly string[]
}

/** The data that only this worker stores, with at most `namesLimit` names of each kind. */
export async function holdings(q: Queryable, id: WorkerId, namesLimit: number): Promise<Holdings> {
  const { rows } = await q.query<Holdings>({
    text: `SELECT (SELECT count(*)::integer FROM runs WHERE worker_id = $1 AND ended_at IS NULL) AS runs,
             (SELECT count(*)::integer FROM sandboxes WHERE home_worker_id = $1 AND visible_until IS NULL) AS sandboxes,
             (SELECT count(*)::integer FROM volumes WHERE home_worker_id = $1 AND status = 'active') AS volumes,
             (SELECT count(*)::integer FROM snapshots WHERE worker_id = $1 AND deleted_at IS NULL AND name IS NOT NULL
               AND status <> 'failed') AS snapshots,
             ARRAY(SELECT name FROM snapshots WHERE worker_id = $1 AND deleted_at IS NULL AND name IS NOT NULL
               AND status <> 'failed' ORDER BY id LIMIT $2) AS snapshot_names,
             ARRAY(SELECT name FROM sandboxes WHERE home_worker_id = $1 AND visible_until IS NULL ORDER BY id LIMIT $2) AS sandbox_names,
             ARRAY(SELECT coalesce(name, 'the default volume of its organization') FROM volumes
               WHERE home_worker_id = $1 AND status = 'active' ORDER BY id LIMIT $2) AS volume_names`,
    values: [id, namesLimit],
  })
  const [row] = rows
  if (row === undefined) throw new Error('a query without conditions returned no row')
  return row
}

/**
 * Revokes a worker's credential and frees its name. Its lease does not end early: until it expires, the worker may
 * still run sandboxes.
 */
export async function remove(tx: Queryable, id: WorkerId, now: Date): Promise<void> {
  await tx.query({ text: `UPDATE workers SET removed_at = $2 WHERE id = $1 AND removed_at IS NULL`, values: [id, now] })
}

/** SQL: removed workers whose lease has expired and that have no open run. They will never report again. */
const GONE = `SELECT w.id FROM workers w WHERE w.removed_at IS NOT NULL AND coalesce(w.lease_expires_at, w.removed_at) < $1
  AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.worker_id = w.id AND r.ended_at IS NULL)`

/**
 * Detaches sandboxes from workers that are gone. At their next start, they get an empty disk on another worker. Returns
 * the number of sandboxes.
 */
export async function detachSandboxes(tx: Queryable, now: Date, limit: number): Promise<number> {
  const { rowCount } = await tx.query({
    name: 'fleet.detachSandboxes',
    text: `UPDATE sandboxes SET home_worker_id = NULL WHERE id IN (
             SELECT s.id FROM (${GONE}) g JOIN sandboxes s ON s.home_worker_id = g.id LIMIT $2 FOR UPDATE OF s SKIP LOCKED)`,
    values: [now, limit],
  })
  return rowCount
}

/** Volumes whose home worker is gone, locked until the transaction ends. */
export async function lockVolumesOfGoneWorkers(tx: Queryable, now: Date, limit: number): Promise<readonly VolumeId[]> {
  const { rows } = await tx.query<{ readonly id: VolumeId }>({
    name: 'fleet.lockVolumesOfGoneWorkers',
    text: `SELECT v.id FROM (${GONE}) g JOIN volumes v ON v.home_worker_id = g.id LIMIT $2 FOR NO KEY UPDATE OF v SKIP LOCKED`,
    values: [now, limit],
  })
  return rows.map(({ id }) => id)
}

/**
 * Detaches volumes from their home workers. The caller must have locked the volumes. At its next use, a detached volume
 * gets a new home worker and is empty.
 */
export async function detachVolumes(tx: Queryable, ids: readonly VolumeId[]): Promise<void> {
  await tx.query({
    name: 'fleet.detachVolumes',
    text: `UPDATE volumes SET home_worker_id = NULL, used_bytes = NULL WHERE id = ANY($1::uuid[])`,
    values: [ids],
  })
}
