/** The queries of the loop that makes snapshots and deletes their data. */
import type { OrgId, SnapshotId, WorkerId } from '../../domain/ids.ts'
import type { Snapshot } from '../../domain/snapshots/snapshot.ts'
import type { Queryable } from '../postgres/database.ts'
import { accrueStorage } from '../usage/accrue-storage.ts'
import { SNAPSHOT_COLUMNS } from './snapshots.ts'

/** A snapshot to make. */
export type SnapshotToTake = Snapshot & {
  readonly records_integrity: boolean
  /** Whether its sandbox or its worker is gone. */
  readonly has_lost_source: boolean
}

/**
 * Snapshots that are not complete: of each organization its oldest, then of each its next. An organization with a limit on its storage
 * has no next, because what the oldest takes of the limit is not known yet. Those of workers that don't report wait, until they were
 * asked for before `givenUpBefore`.
 */
export async function toTake(
  q: Queryable,
  { now, givenUpBefore, limit }: { readonly now: Date; readonly givenUpBefore: Date; readonly limit: number },
): Promise<readonly SnapshotToTake[]> {
  const { rows } = await q.query<SnapshotToTake>({
    name: 'snapshotWork.toTake',
    text: `WITH open AS (
             SELECT n.*, row_number() OVER (PARTITION BY n.org_id ORDER BY n.id) AS turn,
               w.removed_at IS NOT NULL
                 OR NOT EXISTS (SELECT FROM sandboxes s WHERE s.id = n.sandbox_id AND s.visible_until IS NULL) AS has_lost_source
             FROM snapshots n JOIN workers w ON w.id = n.worker_id
             WHERE n.status IN ('queued', 'in_progress')
               AND (w.lease_expires_at > $1 OR w.removed_at IS NOT NULL OR n.created_at < $2))
           SELECT ${SNAPSHOT_COLUMNS}, records_integrity, has_lost_source FROM open
           WHERE turn = 1 OR NOT EXISTS (SELECT FROM org_limits l WHERE l.org_id = open.org_id AND l.max_total_storage_gib IS NOT NULL)
           ORDER BY turn, id LIMIT $3`,
    values: [now, givenUpBefore, limit],
  })
  return rows
}

/** Notes that the worker is making a snapshot. */
export async function begin(q: Queryable, id: SnapshotId, now: Date): Promise<void> {
  await q.query({
    name: 'snapshotWork.begin',
    text: `UPDATE snapshots SET status = 'in_progress', updated_at = $2 WHERE id = $1 AND status = 'queued'`,
    values: [id, now],
  })
}

/** The result of a snapshot. */
export type SnapshotResult = {
  readonly [Member in 'disk_bytes' | 'size_bytes' | 'digest' | 'manifest' | 'completed_at']: NonNullable<
    Snapshot[Member]
  >
}

/**
 * Completes a snapshot. If it replaces one of the same name, hides that one. Returns those that it replaced, or null, and changes nothing,
 * if its making has ended already. If its name was taken meanwhile, it violates `snapshots_name_key`.
 */
export async function complete(
  tx: Queryable,
  id: SnapshotId,
  result: SnapshotResult,
): Promise<readonly { readonly id: SnapshotId }[] | null> {
  const { disk_bytes, size_bytes, digest, manifest, completed_at } = result
  const replaced = await tx.query<{ readonly id: SnapshotId }>({
    name: 'snapshotWork.lockReplaced',
    text: `SELECT o.id FROM snapshots o JOIN snapshots n ON o.org_id = n.org_id AND o.name = n.name AND o.id <> n.id
           WHERE n.id = $1 AND n.replaces AND n.status IN ('queued', 'in_progress') AND o.status = 'succeeded' AND o.deleted_at IS NULL FOR UPDATE OF o`,
    values: [id],
  })
  await hideAll(tx, replaced.rows, completed_at)
  const { rowCount } = await tx.query({
    name: 'snapshotWork.complete',
    text: `UPDATE snapshots SET status = 'succeeded', replaces = false, disk_bytes = $2, size_bytes = $3, digest = $4, manifest = $5,
             completed_at = $6, updated_at = $6, accrued_until = CASE WHEN name IS NULL THEN NULL ELSE $6::timestamptz END
           WHERE id = $1 AND status IN ('queued', 'in_progress')`,
    values: [id, disk_bytes, size_bytes, digest, manifest, completed_at],
  })
  return rowCount === 1 ? replaced.rows : null
}

/** Ends the making of a snapshot without one. Returns false if it is complete already. */
export async function fail(
  tx: Queryable,
  id: SnapshotId,
  { error, now }: { readonly error: NonNullable<Snapshot['error']>; readonly now: Date },
): Promise<boolean> {
  const { rowCount } = await tx.query({
    name: 'snapshotWork.fail',
    text: `UPDATE snapshots SET status = 'failed', error = $2, completed_at = $3, updated_at = $3
           WHERE id = $1 AND status IN ('queued', 'in_progress')`,
    values: [id, JSON.stringify(error), now],
  })
  return rowCount === 1
}

export type SnapshotToDiscard = {
  readonly id: SnapshotId
  readonly org_id: OrgId
  readonly worker_id: WorkerId
  readonly is_worker_gone: boolean
}

/**
 * Snapshots whose data nobody needs any more: those that are hidden, those that failed before `failedBefore`, and those
 * of interrupted forks, which have no name. Workers that don't report are left for later. A sandbox needs the data
 * until its first run has started.
 */
export async function toDiscard(
  q: Queryable,
  {
    failedBefore,
    unnamedBefore,
    limit,
    now,
  }: { readonly failedBefore: Date; readonly unnamedBefore: Date; readonly limit: number; readonly now: Date },
): Promise<readonly SnapshotToDiscard[]> {
  const { rows } = await q.query<SnapshotToDiscard>({
    name: 'snapshotWork.toDiscard',
    text: `SELECT n.id, n.org_id, n.worker_id, w.removed_at IS NOT NULL AS is_worker_gone
           FROM snapshots n JOIN workers w ON w.id = n.worker_id AND (w.lease_expires_at > $4 OR w.removed_at IS NOT NULL)
           WHERE (n.deleted_at IS NOT NULL AND n.status IN ('succeeded', 'failed') OR n.status = 'failed' AND n.completed_at < $1
               OR n.name IS NULL AND n.status = 'succeeded' AND n.completed_at < $2)
             AND NOT EXISTS (SELECT FROM sandboxes s WHERE s.snapshot_id = n.id AND s.visible_until IS NULL AND s.started_at IS NULL)
           ORDER BY n.id LIMIT $3`,
    values: [failedBefore, unnamedBefore, limit, now],
  })
  return rows
}

/** The worker that has a snapshot. Null unless an open run of the worker `of` is of a sandbox that is made from the snapshot. */
export async function workerFor(q: Queryable, id: SnapshotId, of: WorkerId): Promise<WorkerId | null> {
  const { rows } = await q.query<{ readonly worker_id: WorkerId }>({
    name: 'snapshotWork.workerFor',
    text: `SELECT n.worker_id FROM snapshots n
           WHERE n.id = $1 AND n.status = 'succeeded' AND EXISTS (SELECT FROM sandboxes s JOIN runs r ON r.sandbox_id = s.id
             WHERE s.snapshot_id = n.id AND r.worker_id = $2 AND r.ended_at IS NULL)`,
    values: [id, of],
  })
  return rows[0]?.worker_id ?? null
}

/** Deletes the row of a snapshot whose data is gone. */
export async function forget(tx: Queryable, id: SnapshotId): Promise<void> {
  await tx.query({ name: 'snapshotWork.forget', text: 'DELETE FROM snapshots WHERE id = $1', values: [id] })
}

/** A snapshot that clients saw until it was hidden. */
type GoneSnapshot = Pick<Snapshot, 'id' | 'org_id'> & { readonly name: string }

/** Hides all snapshots of a worker that is removed: their data is gone with it. Returns those that clients saw. */
export async function hideOfWorker(tx: Queryable, worker: WorkerId, now: Date): Promise<readonly GoneSnapshot[]> {
  const ids = await lockOfWorker(tx, worker)
  await hideAll(
    tx,
    ids.map((id) => ({ id })),
    now,
  )
  const { rows } = await tx.query<GoneSnapshot>({
    name: 'snapshotWork.gone',
    text: `SELECT id, org_id, name FROM snapshots WHERE id = ANY($1::uuid[]) AND status = 'succeeded' AND name IS NOT NULL ORDER BY id`,
    values: [ids],
  })
  return rows
}

/** Locks the snapshots of a worker that are not hidden. */
export async function lockOfWorker(tx: Queryable, worker: WorkerId): Promise<readonly SnapshotId[]> {
  const { rows } = await tx.query<{ readonly id: SnapshotId }>({
    name: 'snapshotWork.lockOfWorker',
    text: 'SELECT id FROM snapshots WHERE worker_id = $1 AND deleted_at IS NULL ORDER BY id FOR UPDATE',
    values: [worker],
  })
  return rows.map(({ id }) => id)
}

/** Hides snapshots, and meters them up to now. The caller must have locked them. */
async function hideAll(tx: Queryable, snapshots: readonly { readonly id: SnapshotId }[], now: Date): Promise<void> {
  const ids = snapshots.map(({ id }) => id)
  await accrueStorage(tx, 'snapshots', ids, now)
  await tx.query({
    name: 'snapshotWork.hideAll',
    text: 'UPDATE snapshots SET deleted_at = $2, updated_at = $2 WHERE id = ANY($1::uuid[])',
    values: [ids, now],
  })
}
