import type { Queryable } from '../postgres/database.ts'

/**
 * Adds up to `limit` ended runs to the sums of their days, and marks these runs as added. Returns the number of runs.
 * Call this in a transaction of its own. Each run is added exactly once: all callers wait for one lock, and the mark
 * commits together with the sums.
 */
export async function rollUp(tx: Queryable, now: Date, limit: number): Promise<number> {
  await tx.query({ text: `SELECT pg_advisory_xact_lock(hashtext('sandyard: roll up usage'))` })
  const { rows } = await tx.query<{ readonly count: number }>({
    name: 'rollUp.rollUp',
    text: `WITH batch AS (
             SELECT id FROM runs WHERE rolled_up_at IS NULL AND started_at IS NOT NULL AND ended_at IS NOT NULL
             ORDER BY org_id, id LIMIT $2),
           taken AS (
             UPDATE runs r SET rolled_up_at = $1 FROM batch WHERE r.id = batch.id
             RETURNING r.org_id, r.sandbox_id, r.vcpus::bigint, r.memory_mib::bigint, r.disk_mib::bigint,
               r.started_at, r.ended_at, sandyard_ms(r.started_at) AS from_ms, sandyard_ms(r.ended_at) AS to_ms),
           pieces AS (
             SELECT org_id, sandbox_id, '1970-01-01'::date + d::integer AS day, vcpus, memory_mib, disk_mib,
               least(to_ms, (d + 1) * 86400000) - greatest(from_ms, d * 86400000) AS ms,
               started_at <= to_timestamp(d * 86400) AND ended_at >= to_timestamp((d + 1) * 86400) AS is_all_day
             FROM taken, generate_series(from_ms / 86400000, (to_ms - 1) / 86400000) d WHERE to_ms > from_ms),
           sandbox_days AS MATERIALIZED (
             SELECT org_id, day, sandbox_id, ${SUMS} FROM pieces GROUP BY org_id, day, sandbox_id),
           by_sandbox AS (
             INSERT INTO usage_days AS u (org_id, day, sandbox_id, ${COLUMNS.join(', ')})
             SELECT * FROM sandbox_days
             ON CONFLICT ON CONSTRAINT usage_days_pkey DO UPDATE SET ${ADDED}),
           by_org AS (
             INSERT INTO usage_org_days AS u (org_id, day, ${COLUMNS.join(', ')})
             SELECT org_id, day, ${COLUMNS.map((column) => `sum(${column})`).join(', ')}
             FROM sandbox_days GROUP BY org_id, day
             ON CONFLICT ON CONSTRAINT usage_org_days_pkey DO UPDATE SET ${ADDED})
           SELECT count(*) AS count FROM taken`,
    values: [now, limit],
  })
  return rows[0]?.count ?? 0
}

const COLUMNS = ['vcpu_ms', 'memory_mib_ms', 'disk_mib_ms', 'all_day_vcpus', 'all_day_memory_mib', 'all_day_disk_mib']

const SUMS = `sum(vcpus * ms) AS vcpu_ms, sum(memory_mib * ms) AS memory_mib_ms, sum(disk_mib * ms) AS disk_mib_ms,
  coalesce(sum(vcpus) FILTER (WHERE is_all_day), 0) AS all_day_vcpus,
  coalesce(sum(memory_mib) FILTER (WHERE is_all_day), 0) AS all_day_memory_mib,
  coalesce(sum(disk_mib) FILTER (WHERE is_all_day), 0) AS all_day_disk_mib`

const ADDED = COLUMNS.map((column) => `${column} = u.${column} + excluded.${column}`).join(', ')
