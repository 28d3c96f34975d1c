/**
 * How many visible sandboxes and active runs each organization has. A run is active while it is open and nobody has asked
 * to stop it. Triggers record what each statement changes in a row of `org_count_deltas`. Rows are only ever added, so
 * concurrent transactions don't wait for each other, and the row of one that rolls back is never seen.
 */
import type { Queryable } from '../postgres/database.ts'

/**
 * SQL: the counts of an organization. `org` is an expression. The result has one row with `sandboxes`, `ephemeral_runs`
 * and `persistent_runs`. It is exact, because one statement reads both tables in one snapshot.
 */
export function countsOf(org: string): string {
  return `SELECT coalesce(sum(sandboxes), 0)::bigint AS sandboxes, coalesce(sum(ephemeral_runs), 0)::bigint AS ephemeral_runs,
      coalesce(sum(persistent_runs), 0)::bigint AS persistent_runs
    FROM (
      SELECT sandboxes, ephemeral_runs, persistent_runs FROM org_counts WHERE org_id = ${org}
      UNION ALL
      SELECT sandboxes, ephemeral_runs, persistent_runs FROM org_count_deltas WHERE org_id = ${org}) c`
}

/**
 * Adds up to `limit` deltas to the counts of their organizations and deletes them. Returns their number. Call it in a
 * transaction of its own. All callers wait for one lock, so two of them don't deadlock.
 */
export async function addDeltas(tx: Queryable, limit: number): Promise<number> {
  await tx.query({ text: `SELECT pg_advisory_xact_lock(hashtext('sandyard: add counts'))` })
  const { rows } = await tx.query<{ readonly count: number }>({
    name: 'orgCounts.addDeltas',
    text: `WITH taken AS (
             DELETE FROM org_count_deltas WHERE ctid = ANY(ARRAY(SELECT ctid FROM org_count_deltas LIMIT $1))
             RETURNING org_id, sandboxes, ephemeral_runs, persistent_runs),
           added AS (
             INSERT INTO org_counts AS c (org_id, sandboxes, ephemeral_runs, persistent_runs)
             SELECT org_id, sum(sandboxes), sum(ephemeral_runs), sum(persistent_runs) FROM taken GROUP BY org_id
             ON CONFLICT ON CONSTRAINT org_counts_pkey DO UPDATE SET sandboxes = c.sandboxes + excluded.sandboxes,
               ephemeral_runs = c.ephemeral_runs + excluded.ephemeral_runs,
               persistent_runs = c.persistent_runs + excluded.persistent_runs)
           SELECT count(*) AS count FROM taken`,
    values: [limit],
  })
  return rows[0]?.count ?? 0
}
