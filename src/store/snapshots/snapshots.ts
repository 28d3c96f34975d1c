/** Snapshots as clients read and change them. `snapshot-work.ts` has the queries of the loop that makes and deletes them. */
import type { OrgId, SandboxId, SnapshotId, SnapshotOperationId, WorkerId } from '../../domain/ids.ts'
import { SNAPSHOTS_MAX, type Snapshot } from '../../domain/snapshots/snapshot.ts'
import * as orgs from '../orgs/orgs.ts'
import type { Queryable } from '../postgres/database.ts'
import { accrueStorage } from '../usage/accrue-storage.ts'

/** SQL: the columns of a `Snapshot`. The client's numbers hold 53 bits, which is enough for sizes. */
export const SNAPSHOT_COLUMNS = `id, operation_id, org_id, name, status, sandbox_id, sandbox_name, worker_id, image, labels,
  disk_bytes::float8, size_bytes::float8, digest, manifest, error, created_at, updated_at, completed_at`

/** SQL: whether clients see a snapshot. */
const IS_VISIBLE = `deleted_at IS NULL AND status = 'succeeded' AND name IS NOT NULL`

export type NewSnapshot = {
  readonly id: SnapshotId
  readonly operation_id: SnapshotOperationId
  readonly org_id: OrgId
  readonly name: string | null
  readonly sandbox_id: SandboxId
  readonly sandbox_name: string
  readonly worker_id: WorkerId
  readonly image: string
  readonly labels: Readonly<Record<string, string>>
  /** Whether a snapshot of the same name goes once this one is complete. */
  readonly replaces: boolean
  readonly records_integrity: boolean
  readonly is_scheduled: boolean
  readonly created_at: Date
}

/**
 * Adds a queued snapshot. Returns null if the organization already has `SNAPSHOTS_MAX`, or as many that failed: those are counted apart,
 * because clients can't delete them. A taken name violates `snapshots_name_key`. Locks the organization.
 */
export async function insert(tx: Queryable, snapshot: NewSnapshot): Promise<Snapshot | null> {
  const { id, operation_id, org_id, name, sandbox_id, sandbox_name, worker_id, image } = snapshot
  const { replaces, records_integrity, is_scheduled, created_at } = snapshot
  const labels = JSON.stringify(snapshot.labels)
  await orgs.lock(tx, org_id)
  const { rows } = await tx.query<Snapshot>({
    name: 'snapshots.insert',
    text: `INSERT INTO snapshots (id, operation_id, org_id, name, status, sandbox_id, sandbox_name, worker_id, image, labels, replaces,
             records_integrity, is_scheduled, created_at, updated_at)
           SELECT $1, $2, $3, $4, 'queued', $5, $6, $7, $8, $9, $10, $11, $12, $13, $13
           WHERE (SELECT count(*) FILTER (WHERE status <> 'failed') < $14 AND count(*) FILTER (WHERE status = 'failed') < $14
             FROM snapshots WHERE org_id = $3 AND deleted_at IS NULL) RETURNING ${SNAPSHOT_COLUMNS}`,
    values: [
      id, operation_id, org_id, name, sandbox_id, sandbox_name, worker_id, image, labels, replaces, records_integrity,
      is_scheduled, created_at, SNAPSHOTS_MAX,
    ], // prettier-ignore
  })
  return rows[0] ?? null
}

/** A complete snapshot of the organization, or null. */
export async function find(q: Queryable, org: OrgId, id: SnapshotId): Promise<Snapshot | null> {
  const { rows } = await q.query<Snapshot>({
    name: 'snapshots.find',
    text: `SELECT ${SNAPSHOT_COLUMNS} FROM snapshots WHERE org_id = $1 AND id = $2 AND ${IS_VISIBLE}`,
    values: [org, id],
  })
  return rows[0] ?? null
}

/** The complete snapshot with this name, or null. */
export async function findByName(q: Queryable, org: OrgId, name: string): Promise<Snapshot | null> {
  const { rows } = await q.query<Snapshot>({
    name: 'snapshots.findByName',
    text: `SELECT ${SNAPSHOT_COLUMNS} FROM snapshots WHERE org_id = $1 AND name = $2 AND ${IS_VISIBLE} AND NOT replaces`,
    values: [org, name],
  })
  return rows[0] ?? null
}

/** The first `count` complete snapshots after the one with the id `after`, from the newest to the oldest. */
export async function page(
  q: Queryable,
  org: OrgId,
  { after, count }: { readonly after: string | null; readonly count: number },
): Promise<readonly Snapshot[]> {
  const { rows } = await q.query<Snapshot>({
    name: 'snapshots.page',
    text: `SELECT ${SNAPSHOT_COLUMNS} FROM snapshots
           WHERE org_id = $1 AND ${IS_VISIBLE} AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3`,
    values: [org, after, count],
  })
  return rows
}

/** The snapshot that an operation makes, whatever became of it, or null. */
export async function findByOperation(q: Queryable, org: OrgId, id: SnapshotOperationId): Promise<Snapshot | null> {
  const { rows } = await q.query<Snapshot>({
    name: 'snapshots.findByOperation',
    text: `SELECT ${SNAPSHOT_COLUMNS} FROM snapshots WHERE org_id = $1 AND operation_id = $2`,
    values: [org, id],
  })
  return rows[0] ?? null
}

/** Hides a complete snapshot from clients, and meters it up to now. Its data goes later. Returns null if clients don't see it. */
export async function hide(
  tx: Queryable,
  org: OrgId,
  { id, now }: { readonly id: SnapshotId; readonly now: Date },
): Promise<Snapshot | null> {
  const visible = await tx.query<{ readonly id: SnapshotId }>({
    name: 'snapshots.lock',
    text: `SELECT id FROM snapshots WHERE org_id = $1 AND id = $2 AND ${IS_VISIBLE} FOR UPDATE`,
    values: [org, id],
  })
  await accrueStorage(
    tx,
    'snapshots',
    visible.rows.map((row) => row.id),
    now,
  )
  const { rows } = await tx.query<Snapshot>({
    name: 'snapshots.hide',
    text: `UPDATE snapshots SET deleted_at = $3, updated_at = $3 WHERE org_id = $1 AND id = $2 AND ${IS_VISIBLE} RETURNING ${SNAPSHOT_COLUMNS}`,
    values: [org, id, now],
  })
  return rows[0] ?? null
}

/** Lets the data of a snapshot without a name go once no sandbox needs it. */
export async function releaseUnnamed(q: Queryable, id: SnapshotId, now: Date): Promise<void> {
  await q.query({
    name: 'snapshots.releaseUnnamed',
    text: 'UPDATE snapshots SET deleted_at = $2, updated_at = $2 WHERE id = $1 AND name IS NULL AND deleted_at IS NULL',
    values: [id, now],
  })
}

/** How many bytes the organization's volumes and snapshots have together. */
export async function storedBytes(q: Queryable, org: OrgId): Promise<number> {
  const { rows } = await q.query<{ readonly bytes: number }>({
    name: 'snapshots.storedBytes',
    text: `SELECT (coalesce((SELECT sum(used_bytes) FROM volumes WHERE org_id = $1), 0)
             + coalesce((SELECT sum(size_bytes) FROM snapshots WHERE org_id = $1 AND deleted_at IS NULL), 0))::float8 AS bytes`,
    values: [org],
  })
  return rows[0]?.bytes ?? 0
}
