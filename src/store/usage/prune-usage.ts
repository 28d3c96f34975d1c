/**
 * Deletes the usage of each sandbox and volume from before a UTC midnight. The sums of each organization and day stay:
 * `usage_org_days` has them already, and `storage_org_days` gets them as the intervals of volumes are deleted.
 */
import { NIL_UUID } from '../../lib/uuid.ts'
import type { PruneStep, StepResult } from '../postgres/prune-step.ts'

const NO_ROWS: StepResult = { walked: 0, last: null }

/** Deletes the days of sandboxes. A step continues with the organization at which the previous one ended. */
export const pruneSandboxDays: PruneStep = async (q, { before, after, limit }) => {
  const { rows } = await q.query<StepResult>({
    name: 'pruneUsage.sandboxDays',
    text: `WITH old AS MATERIALIZED (
             SELECT u.* FROM orgs o, LATERAL (
               SELECT org_id, day, sandbox_id FROM usage_days WHERE org_id = o.id AND day < ($2::timestamptz AT TIME ZONE 'UTC')::date
               ORDER BY day, sandbox_id LIMIT $3) u
             WHERE o.id >= $1 ORDER BY o.id LIMIT $3),
           gone AS (DELETE FROM usage_days u USING old
             WHERE u.org_id = old.org_id AND u.day = old.day AND u.sandbox_id = old.sandbox_id)
           SELECT count(*) AS walked, (SELECT org_id FROM old ORDER BY org_id DESC LIMIT 1) AS last FROM old`,
    values: [after ?? NIL_UUID, before, limit],
  })
  return rows[0] ?? NO_ROWS
}

/** Deletes the intervals of volumes, and adds them to the day of their organization in the same statement. */
export const pruneStorageAccruals: PruneStep = async (q, { before, after, limit }) => {
  const { rows } = await q.query<StepResult>({
    name: 'pruneUsage.storageAccruals',
    text: `WITH old AS MATERIALIZED (
             SELECT a.* FROM orgs o, LATERAL (
               SELECT org_id, volume_id, from_at FROM storage_accruals WHERE org_id = o.id AND from_at < $2
               ORDER BY from_at LIMIT $3) a
             WHERE o.id >= $1 ORDER BY o.id LIMIT $3),
           gone AS (DELETE FROM storage_accruals a USING old
             WHERE a.org_id = old.org_id AND a.volume_id = old.volume_id AND a.from_at = old.from_at
             RETURNING a.org_id, a.from_at, a.used_bytes::numeric * (sandyard_ms(a.to_at) - sandyard_ms(a.from_at)) AS byte_ms),
           sums AS (INSERT INTO storage_org_days AS d (org_id, day, byte_ms)
             SELECT org_id, (from_at AT TIME ZONE 'UTC')::date AS day, sum(byte_ms) FROM gone GROUP BY org_id, day
             ON CONFLICT ON CONSTRAINT storage_org_days_pkey DO UPDATE SET byte_ms = d.byte_ms + excluded.byte_ms)
           SELECT count(*) AS walked, (SELECT org_id FROM old ORDER BY org_id DESC LIMIT 1) AS last FROM old`,
    values: [after ?? NIL_UUID, before, limit],
  })
  return rows[0] ?? NO_ROWS
}
