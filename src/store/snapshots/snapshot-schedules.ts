/** Snapshots by the label `sandyard.snapshot`. All queries read every organization, so `q` must be the system's. */
import type { OrgId, SandboxId, SnapshotId } from '../../domain/ids.ts'
import { KEPT_BY_DEFAULT, SCHEDULE_PERIODS_MS, SNAPSHOT_LABEL } from '../../domain/sandboxes/snapshot-schedule.ts'
import type { Queryable } from '../postgres/database.ts'

export type DueSnapshot = {
  readonly sandbox_id: SandboxId
  readonly org_id: OrgId
  readonly slug: string
  /** The value of the label. */
  readonly schedule: string
}

/** SQL: the time between two snapshots by the value of a label `l`. */
const PERIOD = `CASE split_part(l.value, ' ', 1) ${Object.entries(SCHEDULE_PERIODS_MS)
  .map(([word, ms]) => `WHEN '${word}' THEN interval '${String(ms)} ms'`)
  .join(' ')} END`

/**
 * Sandboxes whose next scheduled snapshot is due: at most `limit` after `after`, by id. A sandbox that did not run since its last one
 * needs none, and one whose worker doesn't report can have none. After a failure, the next try is an hour later at the latest.
 */
export async function due(
  q: Queryable,
  { now, after, limit }: { readonly now: Date; readonly after: SandboxId | null; readonly limit: number },
): Promise<readonly DueSnapshot[]> {
  const { rows } = await q.query<DueSnapshot>({
    name: 'snapshotSchedules.due',
    text: `SELECT s.id AS sandbox_id, s.org_id, s.slug, l.value AS schedule
           FROM sandbox_labels l JOIN sandboxes s ON s.id = l.sandbox_id
             AND s.visible_until IS NULL
           JOIN workers w ON w.id = s.home_worker_id AND w.lease_expires_at > $1
           LEFT JOIN LATERAL (
             SELECT n.created_at, n.status FROM snapshots n WHERE n.sandbox_id = s.id AND n.is_scheduled
             ORDER BY n.id DESC LIMIT 1) tried ON true
           LEFT JOIN LATERAL (
             SELECT n.created_at FROM snapshots n WHERE n.sandbox_id = s.id AND n.is_scheduled AND n.status <> 'failed'
             ORDER BY n.id DESC LIMIT 1) made ON true
           WHERE l.key = '${SNAPSHOT_LABEL}' AND ($2::uuid IS NULL OR l.sandbox_id > $2)
             AND (tried.created_at IS NULL
               OR tried.created_at <= $1::timestamptz - CASE WHEN tried.status = 'failed' THEN interval '1 hour' ELSE ${PERIOD} END)
             AND EXISTS (SELECT FROM runs r WHERE r.sandbox_id = s.id AND r.started_at IS NOT NULL
               AND (r.ended_at IS NULL OR r.ended_at > coalesce(made.created_at, '-infinity')))
           ORDER BY s.id LIMIT $3`,
    values: [now, after, limit],
  })
  return rows
}

/** Complete scheduled snapshots beyond the number that their sandbox keeps, the oldest first. */
export async function surplus(
  q: Queryable,
  limit: number,
): Promise<readonly { readonly id: SnapshotId; readonly org_id: OrgId }[]> {
  const { rows } = await q.query<{ readonly id: SnapshotId; readonly org_id: OrgId }>({
    name: 'snapshotSchedules.surplus',
    text: `SELECT id, org_id FROM (
             SELECT n.id, n.org_id, row_number() OVER (PARTITION BY n.sandbox_id ORDER BY n.id DESC) AS place,
               coalesce(substring(l.value FROM 'keep=([0-9]+)')::integer, ${String(KEPT_BY_DEFAULT)}) AS kept
             FROM sandbox_labels l JOIN snapshots n ON n.sandbox_id = l.sandbox_id AND n.is_scheduled
               AND n.status = 'succeeded' AND n.deleted_at IS NULL
             WHERE l.key = '${SNAPSHOT_LABEL}') ranked
           WHERE place > kept ORDER BY id LIMIT $1`,
    values: [limit],
  })
  return rows
}
