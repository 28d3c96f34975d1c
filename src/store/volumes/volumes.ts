/**
 * Volumes as clients read and change them. A volume is `active` until a client deletes it. Its row and name stay until
 * its files are deleted (`volume-reports.ts`). The row lock decides a race between a mount and a deletion: mounts lock
 * the row FOR SHARE (`volume-mounts.ts`, `admissions.ts`), a deletion FOR UPDATE.
 */
import type { OrgId, SandboxId, VolumeId, WorkerId } from '../../domain/ids.ts'
import type { SandboxStatus } from '../../domain/sandboxes/lifecycle.ts'
import { VOLUMES_MAX, type Volume } from '../../domain/volumes/volume.ts'
import * as orgs from '../orgs/orgs.ts'
import type { Queryable } from '../postgres/database.ts'

const COLUMNS = 'id, org_id, kind, name, status, labels, capacity_gib, used_bytes, created_at, updated_at'

/** An organization's volumes: first the default volume, then the others from oldest to newest. */
export async function list(q: Queryable, org: OrgId): Promise<readonly Volume[]> {
  const { rows } = await q.query<Volume>({
    name: 'volumes.list',
    text: `SELECT ${COLUMNS} FROM volumes WHERE org_id = $1 ORDER BY kind <> 'host', created_at, id LIMIT $2`,
    values: [org, VOLUMES_MAX + 1],
  })
  return rows
}

/**
 * Where the files of a volume are: on its home worker, or on the shared storage. Before the volume's first use, they
 * are nowhere: null and false.
 */
export type VolumeHome = { readonly home_worker_id: WorkerId | null; readonly is_shared: boolean }

/** A volume with the location of its files. */
export type PlacedVolume = Volume & VolumeHome

/** One of an organization's volumes, or null. */
export async function find(q: Queryable, org: OrgId, id: VolumeId): Promise<PlacedVolume | null> {
  const { rows } = await q.query<PlacedVolume>({
    name: 'volumes.find',
    text: `SELECT ${COLUMNS}, home_worker_id, is_shared FROM volumes WHERE org_id = $1 AND id = $2`,
    values: [org, id],
  })
  return rows[0] ?? null
}

/** The default volume of an organization, or null. */
export async function findDefaultVolume(q: Queryable, org: OrgId): Promise<PlacedVolume | null> {
  const { rows } = await q.query<PlacedVolume>({
    name: 'volumes.findDefaultVolume',
    text: `SELECT ${COLUMNS}, home_worker_id, is_shared FROM volumes WHERE org_id = $1 AND kind = 'host'`,
    values: [org],
  })
  return rows[0] ?? null
}

/** The managed volume with this name, whatever its status, or null. */
export async function findByName(q: Queryable, org: OrgId, name: string): Promise<Volume | null> {
  const { rows } = await q.query<Volume>({
    name: 'volumes.findByName',
    text: `SELECT ${COLUMNS} FROM volumes WHERE org_id = $1 AND kind = 'managed' AND name = $2`,
    values: [org, name],
  })
  return rows[0] ?? null
}

/**
 * Adds a volume. Returns false if the organization already has `VOLUMES_MAX` volumes. A taken name violates
 * `volumes_name_key`. Locks the organization.
 */
export async function insert(tx: Queryable, volume: Omit<Volume, 'used_bytes'>): Promise<boolean> {
  const { id, org_id, kind, name, status, labels, capacity_gib, created_at, updated_at } = volume
  await orgs.lock(tx, org_id)
  const { rowCount } = await tx.query({
    name: 'volumes.insert',
    text: `INSERT INTO volumes (id, org_id, kind, name, status, labels, capacity_gib, created_at, updated_at)
           SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9
           WHERE (SELECT count(*) FROM volumes WHERE org_id = $2 AND kind = 'managed') < $10`,
    values: [id, org_id, kind, name, status, JSON.stringify(labels), capacity_gib, created_at, updated_at, VOLUMES_MAX],
  })
  return rowCount === 1
}

/** Locks a volume against mounts and other changes until the transaction ends. Null if the volume doesn't exist. */
export async function lock(tx: Queryable, org: OrgId, id: VolumeId): Promise<PlacedVolume | null> {
  const { rows } = await tx.query<PlacedVolume>({
    name: 'volumes.lock',
    text: `SELECT ${COLUMNS}, home_worker_id, is_shared FROM volumes WHERE org_id = $1 AND id = $2 FOR UPDATE`,
    values: [org, id],
  })
  return rows[0] ?? null
}

/** Sets the size cap and the labels of a locked volume. Returns the new row. */
export async function update(
  tx: Queryable,
  id: VolumeId,
  to: Pick<Volume, 'capacity_gib' | 'labels' | 'updated_at'>,
): Promise<Volume> {
  const { rows } = await tx.query<Volume>({
    name: 'volumes.update',
    text: `UPDATE volumes SET capacity_gib = $2, labels = $3, updated_at = $4 WHERE id = $1 RETURNING ${COLUMNS}`,
    values: [id, to.capacity_gib, JSON.stringify(to.labels), to.updated_at],
  })
  const [row] = rows
  if (row === undefined) throw new Error('a locked volume has no row')
  return row
}

/** Marks a locked volume for deletion. */
export async function scheduleDeletion(tx: Queryable, id: VolumeId, now: Date): Promise<void> {
  await tx.query({
    name: 'volumes.scheduleDeletion',
    text: `UPDATE volumes SET status = 'deleting', updated_at = $2 WHERE id = $1`,
    values: [id, now],
  })
}

/** A sandbox that mounts a volume. */
export type MountingSandbox = { readonly id: SandboxId; readonly name: string; readonly status: SandboxStatus }

/**
 * The sandboxes that mount a volume and are not terminal. They may write to the volume now, or once they are started.
 */
export async function sandboxesMounting(
  tx: Queryable,
  id: VolumeId,
  limit: number,
): Promise<readonly MountingSandbox[]> {
  const { rows } = await tx.query<MountingSandbox>({
    name: 'volumes.sandboxesMounting',
    text: `SELECT s.id, s.name, s.status FROM sandbox_volumes m JOIN sandboxes s ON s.id = m.sandbox_id
           WHERE m.volume_id = $1 AND (s.status IN ('starting', 'running', 'stopping')
             OR s.status = 'created' AND s.visible_until IS NULL)
           ORDER BY s.id LIMIT $2`,
    values: [id, limit],
  })
  return rows
}

/** The limit on the total size of an organization's volumes, in GiB; null: no limit. */
export async function storageLimitGib(q: Queryable, org: OrgId): Promise<number | null> {
  const { rows } = await q.query<{ readonly max_total_storage_gib: number | null }>({
    name: 'volumes.storageLimitGib',
    text: 'SELECT max_total_storage_gib FROM org_limits WHERE org_id = $1',
    values: [org],
  })
  return rows[0]?.max_total_storage_gib ?? null
}
