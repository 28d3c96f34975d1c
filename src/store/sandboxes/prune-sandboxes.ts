/**
 * Deletes what is gone: runs that ended, and sandboxes that were deleted. A run goes when it is added to the sums of its
 * days, so that nothing that is billed is lost. Of a sandbox, its names and its home stay in `pruned_sandboxes` as long as
 * the usage of sandboxes is kept.
 */
import { minUuidAt, NIL_UUID } from '../../lib/uuid.ts'
import type { PruneStep, StepResult } from '../postgres/prune-step.ts'
import { HAS_NO_OPEN_RUN } from './sandboxes.ts'

const NO_ROWS: StepResult = { walked: 0, last: null }

/**
 * Deletes runs that ended before an instant. A run's id is made when the run is opened, so the walk in the order of ids
 * needs no index of its own. The latest run of a sandbox that is not deleted stays, and so does its latest run that was
 * placed: they say where its log is, and that its home may have its disk.
 */
export const pruneRuns: PruneStep = async (q, { before, after, limit }) => {
  const { rows } = await q.query<StepResult>({
    name: 'pruneSandboxes.runs',
    text: `WITH w AS MATERIALIZED (
             SELECT id, sandbox_id, opened_at, started_at, ended_at, rolled_up_at FROM runs
             WHERE id > $1 AND id < $2 ORDER BY id LIMIT $4),
           gone AS (
             DELETE FROM runs WHERE id = ANY(ARRAY(
               SELECT w.id FROM w LEFT JOIN sandboxes s ON s.id = w.sandbox_id AND s.visible_until IS NULL
               WHERE w.ended_at < $3 AND (w.rolled_up_at IS NOT NULL OR w.started_at IS NULL)
                 AND (s.id IS NULL OR s.run_id IS DISTINCT FROM w.id AND EXISTS (
                   SELECT FROM runs later WHERE later.sandbox_id = w.sandbox_id AND later.worker_id IS NOT NULL
                     AND (later.opened_at, later.id) > (w.opened_at, w.id)))))
             RETURNING id)
           SELECT count(*) AS walked, (SELECT id FROM w ORDER BY id DESC LIMIT 1) AS last FROM w`,
    values: [after ?? NIL_UUID, minUuidAt(before), before, limit],
  })
  return rows[0] ?? NO_ROWS
}

/** Deletes sandboxes that clients can't read since an instant and that have no open run. */
export const pruneSandboxes: PruneStep = async (q, { before, after, limit, now }) => {
  const { rows } = await q.query<StepResult>({
    name: 'pruneSandboxes.sandboxes',
    text: `WITH gone AS MATERIALIZED (
             SELECT id, org_id, name, slug, home_worker_id, visible_until FROM sandboxes s
             WHERE visible_until >= coalesce($1::timestamptz, '-infinity') AND visible_until < $2
               AND ${HAS_NO_OPEN_RUN}
             ORDER BY visible_until LIMIT $3 FOR UPDATE SKIP LOCKED),
           names AS (
             INSERT INTO pruned_sandboxes (id, org_id, name, slug, home_worker_id, pruned_at)
             SELECT id, org_id, name, slug, home_worker_id, $4 FROM gone),
           labels AS (DELETE FROM sandbox_labels WHERE sandbox_id IN (SELECT id FROM gone)),
           mounts AS (DELETE FROM sandbox_volumes WHERE sandbox_id IN (SELECT id FROM gone)),
           rows AS (DELETE FROM sandboxes WHERE id IN (SELECT id FROM gone))
           SELECT count(*) AS walked, max(visible_until)::text AS last FROM gone`,
    values: [after, before, limit, now],
  })
  return rows[0] ?? NO_ROWS
}

/**
 * Deletes the names of sandboxes whose rows were deleted before an instant. One whose home was away since then stays: its
 * worker may still store the disk, and then asks whether the sandbox was deleted.
 */
export const prunePrunedSandboxes: PruneStep = async (q, { before, after, limit }) => {
  const { rows } = await q.query<StepResult>({
    name: 'pruneSandboxes.names',
    text: `WITH w AS MATERIALIZED (
             SELECT id, home_worker_id, pruned_at FROM pruned_sandboxes WHERE id > $1 AND id < $2 ORDER BY id LIMIT $4),
           gone AS (
             DELETE FROM pruned_sandboxes p USING w LEFT JOIN workers h ON h.id = w.home_worker_id
             WHERE p.id = w.id AND w.pruned_at < $3 AND (h.id IS NULL OR h.removed_at IS NOT NULL OR h.lease_expires_at > w.pruned_at))
           SELECT count(*) AS walked, (SELECT id FROM w ORDER BY id DESC LIMIT 1) AS last FROM w`,
    values: [after ?? NIL_UUID, minUuidAt(before), before, limit],
  })
  return rows[0] ?? NO_ROWS
}
