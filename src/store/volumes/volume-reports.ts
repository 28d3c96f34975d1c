/**
 * Workers' reports on volumes, and the data on volumes that workers need. A report applies to the volumes whose home is
 * that worker, and to those on shared storage. A volume counts with its reported size until the next report. Therefore
 * `accrueStorage` records the elapsed time before each new size is stored.
 */
import type { OrgId, VolumeId, WorkerId } from '../../domain/ids.ts'
import type { VolumeStatus } from '../../domain/volumes/volume.ts'
import type { Queryable } from '../postgres/database.ts'
import { accrueStorage } from '../usage/accrue-storage.ts'

/** A worker, and whether its storage is shared with others. */
export type StorageOwner = { readonly worker_id: WorkerId; readonly is_shared: boolean }

export type MeasuredVolume = { readonly volume_id: VolumeId; readonly org_id: OrgId; readonly used_bytes: number }

/**
 * Records the sizes of all volumes of a worker. `all` is null if nothing has changed since the worker's last report.
 * `emptied` in the result says whether the worker no longer stores a volume that is being deleted.
 */
export async function record(
  tx: Queryable,
  from: StorageOwner,
  report: { readonly all: readonly MeasuredVolume[] | null; readonly now: Date },
): Promise<{ readonly emptied: boolean }> {
  const { all, now } = report
  if (all !== null && all.length > 0) {
    const { rows } = await tx.query<{ readonly id: VolumeId }>({
      name: 'volumeReports.lock',
      text: `SELECT id FROM volumes WHERE id = ANY($1::uuid[]) AND (home_worker_id = $2 OR is_shared AND $3)
             ORDER BY id FOR NO KEY UPDATE`,
      values: [all.map(({ volume_id }) => volume_id), from.worker_id, from.is_shared],
    })
    const ids = rows.map(({ id }) => id)
    await accrueStorage(tx, 'volumes', ids, now)
    await tx.query({
      name: 'volumeReports.record',
      text: `UPDATE volumes v SET used_bytes = r.used_bytes,
               accrued_until = CASE WHEN v.status = 'active' THEN greatest(v.accrued_until, $3) ELSE v.accrued_until END
             FROM json_to_recordset($1::json) AS r(volume_id uuid, used_bytes bigint)
             WHERE v.id = r.volume_id AND v.id = ANY($2::uuid[])`,
      values: [JSON.stringify(all), ids, now],
    })
  }
  return { emptied: await markEmptied(tx, from, report) }
}

/**
 * Marks volumes as emptied that are being deleted and that the worker no longer stores. A volume that the worker has
 * never reported was never stored there.
 */
async function markEmptied(
  tx: Queryable,
  from: StorageOwner,
  { all, now }: { readonly all: readonly MeasuredVolume[] | null; readonly now: Date },
): Promise<boolean> {
  const { rowCount } = await tx.query({
    name: 'volumeReports.markEmptied',
    text: `UPDATE volumes SET emptied_at = $3
           WHERE status = 'deleting' AND emptied_at IS NULL AND (home_worker_id = $1 OR is_shared AND $2)
             AND CASE WHEN $4::uuid[] IS NULL THEN used_bytes IS NULL ELSE id <> ALL($4::uuid[]) END`,
    values: [from.worker_id, from.is_shared, now, all === null ? null : all.map(({ volume_id }) => volume_id)],
  })
  return (rowCount ?? 0) > 0
}

/** Locks the volumes whose home is a worker. */
export async function lockOfWorker(tx: Queryable, worker: WorkerId): Promise<readonly VolumeId[]> {
  const { rows } = await tx.query<{ readonly id: VolumeId }>({
    name: 'volumeReports.lockOfWorker',
    text: 'SELECT id FROM volumes WHERE home_worker_id = $1 ORDER BY id FOR NO KEY UPDATE',
    values: [worker],
  })
  return rows.map(({ id }) => id)
}

/** A volume that a worker stores or may store, with the caps to enforce. */
export type StoredVolume = {
  readonly volume_id: VolumeId
  readonly org_id: OrgId
  readonly status: VolumeStatus
  readonly capacity_gib: number | null
  readonly max_total_storage_gib: number | null
}

/**
 * Every volume of a worker by id. It includes volumes on shared storage, and excludes those that are already emptied.
 */
export async function storedOn(q: Queryable, { worker_id, is_shared }: StorageOwner): Promise<readonly StoredVolume[]> {
  const { rows } = await q.query<StoredVolume>({
    name: `volumeReports.storedOn.${is_shared ? 'shared' : 'own'}`,
    text: `SELECT v.id AS volume_id, v.org_id, v.status, v.capacity_gib, l.max_total_storage_gib
           FROM volumes v JOIN org_limits l ON l.org_id = v.org_id
           WHERE (v.home_worker_id = $1 ${is_shared ? 'OR v.is_shared' : ''}) AND v.emptied_at IS NULL ORDER BY v.id`,
    values: [worker_id],
  })
  return rows
}

/**
 * Those of the reported volumes that were deleted in this database. A worker reports such a volume if a write in
 * progress has recreated it after its deletion. Unknown volumes are not returned: a worker that has joined a different
 * database, or an older backup, must not lose its volumes.
 */
export async function findDeleted(
  q: Queryable,
  reported: readonly MeasuredVolume[],
): Promise<readonly MeasuredVolume[]> {
  if (reported.length === 0) return []
  const { rows } = await q.query<{ readonly id: VolumeId }>({
    name: 'volumeReports.findDeleted',
    text: `SELECT w.id FROM unnest($1::uuid[], $2::uuid[]) AS w(id, org_id)
           WHERE NOT EXISTS (SELECT 1 FROM volumes v WHERE v.id = w.id)
             AND EXISTS (SELECT 1 FROM events e WHERE e.org_id = w.org_id AND e.event_type = 'volume_deleted'
               AND e.payload ->> 'volume_id' = w.id::text)`,
    values: [reported.map(({ volume_id }) => volume_id), reported.map(({ org_id }) => org_id)],
  })
  const ids = new Set(rows.map(({ id }) => id))
  return reported.filter(({ volume_id }) => ids.has(volume_id))
}

/** A volume whose row was deleted. */
export type ReapedVolume = { readonly id: VolumeId; readonly org_id: OrgId; readonly name: string }

/** Deletes the rows of volumes that are being deleted and that no worker stores any more. Their names are then free. */
export async function reap(tx: Queryable, limit: number): Promise<readonly ReapedVolume[]> {
  const { rows } = await tx.query<ReapedVolume>({
    name: 'volumeReports.reap',
    text: `DELETE FROM volumes WHERE id IN (
             SELECT id FROM volumes WHERE status = 'deleting'
               AND (emptied_at IS NOT NULL OR home_worker_id IS NULL AND NOT is_shared)
             ORDER BY updated_at LIMIT $1 FOR UPDATE SKIP LOCKED)
           RETURNING id, org_id, name`,
    values: [limit],
  })
  return rows
}
