/**
 * The volumes that sandboxes mount, and the workers that store the files of volumes. A volume gets its home worker at
 * its first use and keeps it. A run is placed on the home worker of its volumes.
 */
import type { OrgId, RunId, SandboxId, VolumeId, WorkerId } from '../../domain/ids.ts'
import type { VolumeKind, VolumeStatus } from '../../domain/volumes/volume.ts'
import type { Queryable } from '../postgres/database.ts'
import { SPEC_PARTS } from '../sandboxes/sandboxes.ts'
import type { VolumeHome } from './volumes.ts'

/** A volume that a mount refers to. */
export type MountedVolume = VolumeHome & {
  readonly id: VolumeId
  readonly kind: VolumeKind
  /** Null: the default volume. */
  readonly name: string | null
  readonly status: VolumeStatus
}

/** The volumes of an organization with these names. With `usesDefault`, also its default volume. */
export async function resolve(
  q: Queryable,
  org: OrgId,
  mounted: { readonly names: readonly string[]; readonly usesDefault: boolean },
): Promise<readonly MountedVolume[]> {
  const { rows } = await q.query<MountedVolume>({
    name: 'volumeMounts.resolve',
    text: `SELECT id, kind, name, status, home_worker_id, is_shared FROM volumes
           WHERE org_id = $1 AND (kind = 'managed' AND name = ANY($2::text[]) OR kind = 'host' AND $3) ORDER BY id`,
    values: [org, mounted.names, mounted.usesDefault],
  })
  return rows
}

/**
 * Locks the volumes of a sandbox against deletion until the transaction ends. Returns those that are deleted or being
 * deleted.
 */
export async function lockMounted(tx: Queryable, sandbox: SandboxId): Promise<readonly VolumeId[]> {
  const { rows } = await tx.query<{ readonly volume_id: VolumeId }>({
    name: 'volumeMounts.lockMounted',
    text: `WITH locked AS MATERIALIZED (
             SELECT v.id FROM volumes v
             WHERE v.id IN (SELECT volume_id FROM sandbox_volumes WHERE sandbox_id = $1) AND v.status = 'active'
             ORDER BY v.id FOR SHARE)
           SELECT m.volume_id FROM sandbox_volumes m
           WHERE m.sandbox_id = $1 AND NOT EXISTS (SELECT 1 FROM locked WHERE locked.id = m.volume_id)`,
    values: [sandbox],
  })
  return rows.map(({ volume_id }) => volume_id)
}

/** The names of the volumes that a sandbox mounts and that are not active. */
export async function unavailableNames(q: Queryable, sandbox: SandboxId): Promise<readonly string[]> {
  const { rows } = await q.query<{ readonly name: string }>({
    name: 'volumeMounts.unavailableNames',
    text: `SELECT DISTINCT w.mount ->> 'name' AS name
           FROM sandboxes s, json_array_elements(${SPEC_PARTS} -> 'mounts') AS w(mount)
           WHERE s.id = $1 AND w.mount ->> 'type' = 'named' AND NOT EXISTS (
             SELECT 1 FROM sandbox_volumes m JOIN volumes v ON v.id = m.volume_id
             WHERE m.sandbox_id = s.id AND v.name = w.mount ->> 'name' AND v.status = 'active')
           ORDER BY name`,
    values: [sandbox],
  })
  return rows.map(({ name }) => name)
}

/**
 * Assigns a home worker to a volume, unless the volume already has one or is being deleted. Returns the volume's home
 * worker. Null if the volume no longer exists.
 */
export async function assignHome(tx: Queryable, id: VolumeId, home: VolumeHome): Promise<VolumeHome | null> {
  await tx.query({
    name: 'volumeMounts.assignHome',
    text: `UPDATE volumes SET home_worker_id = $2, is_shared = $3
           WHERE id = $1 AND status = 'active' AND home_worker_id IS NULL AND NOT is_shared`,
    values: [id, home.home_worker_id, home.is_shared],
  })
  const { rows } = await tx.query<VolumeHome>({
    name: 'volumeMounts.homeOf',
    text: `SELECT home_worker_id, is_shared FROM volumes WHERE id = $1 AND status = 'active'`,
    values: [id],
  })
  return rows[0] ?? null
}

/**
 * Assigns the volumes of a sandbox to the worker that is to run it, if they have no home worker. Returns false and
 * writes nothing if a volume has its home elsewhere or is not active.
 */
export async function assignHomes(tx: Queryable, sandbox: SandboxId, worker: WorkerId): Promise<boolean> {
  const { rows } = await tx.query<{ readonly is_here: boolean }>({
    name: 'volumeMounts.lockAll',
    text: `WITH w AS (SELECT coalesce((storage ->> 'is_shared')::boolean, false) AS is_shared FROM workers WHERE id = $2)
           SELECT v.status = 'active' AND CASE WHEN v.is_shared THEN (SELECT is_shared FROM w)
             ELSE coalesce(v.home_worker_id = $2, true) END AS is_here
           FROM volumes v WHERE v.id IN (SELECT volume_id FROM sandbox_volumes WHERE sandbox_id = $1)
           ORDER BY v.id FOR NO KEY UPDATE`,
    values: [sandbox, worker],
  })
  if (rows.some(({ is_here }) => !is_here)) return false
  await tx.query({
    name: 'volumeMounts.assignHomes',
    text: `UPDATE volumes v SET is_shared = w.is_shared, home_worker_id = CASE WHEN w.is_shared THEN NULL ELSE w.id END
           FROM (SELECT id, coalesce((storage ->> 'is_shared')::boolean, false) AS is_shared FROM workers WHERE id = $2) w
           WHERE v.id IN (SELECT volume_id FROM sandbox_volumes WHERE sandbox_id = $1)
             AND v.home_worker_id IS NULL AND NOT v.is_shared`,
    values: [sandbox, worker],
  })
  return true
}

/** A volume that an open run mounts, with the caps to enforce. */
export type AssignedVolume = {
  readonly run_id: RunId
  readonly org_id: OrgId
  readonly volume_id: VolumeId
  readonly kind: VolumeKind
  readonly name: string | null
  readonly capacity_gib: number | null
  readonly max_total_storage_gib: number | null
}

/** The volumes of a worker's open runs. */
export async function ofWorker(q: Queryable, worker: WorkerId): Promise<readonly AssignedVolume[]> {
  const { rows } = await q.query<AssignedVolume>({
    name: 'volumeMounts.ofWorker',
    text: `SELECT r.id AS run_id, v.org_id, v.id AS volume_id, v.kind, v.name, v.capacity_gib, l.max_total_storage_gib
           FROM runs r JOIN sandbox_volumes m ON m.sandbox_id = r.sandbox_id JOIN volumes v ON v.id = m.volume_id
             JOIN org_limits l ON l.org_id = v.org_id
           WHERE r.worker_id = $1 AND r.ended_at IS NULL ORDER BY r.id, v.id`,
    values: [worker],
  })
  return rows
}

/** SQL: the requirements of the volumes of a sandbox `s` on its worker, as `VolumeNeeds`. Null if it mounts none. */
export const NEEDS_OF_VOLUMES = `SELECT CASE WHEN count(*) > 0 THEN json_build_object('needs_shared', bool_or(v.is_shared),
    'homes', coalesce(json_agg(DISTINCT v.home_worker_id) FILTER (WHERE v.home_worker_id IS NOT NULL), '[]'),
    'needs_caps', bool_or(v.capacity_gib IS NOT NULL OR l.max_total_storage_gib IS NOT NULL)) END AS needs
  FROM sandbox_volumes m JOIN volumes v ON v.id = m.volume_id JOIN org_limits l ON l.org_id = v.org_id
  WHERE m.sandbox_id = s.id`
