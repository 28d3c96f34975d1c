/** Records how much volumes and snapshots held, for usage and bills (`storage-usage.ts`). */
import type { Queryable } from '../postgres/database.ts'

/** The tables of what is metered as storage. Each has a column `accrued_until`, up to which its rows are recorded. */
const HOLDERS = {
  volumes: { bytes: 'used_bytes', held: `status = 'active'` },
  snapshots: { bytes: 'size_bytes', held: 'deleted_at IS NULL' },
} as const
export type Holder = keyof typeof HOLDERS

/**
 * Records the sizes since `accrued_until` as intervals. None of them crosses midnight. Extends the last
 * interval if the size is the same. The caller must have locked the rows. A clock that jumped back adds nothing. May
 * be repeated.
 */
export async function accrueStorage(tx: Queryable, holder: Holder, ids: readonly string[], until: Date): Promise<void> {
  if (ids.length === 0) return
  const { bytes, held } = HOLDERS[holder]
  await tx.query({
    name: `accrueStorage.${holder}`,
    text: `WITH due AS (
             SELECT id, org_id, ${bytes} AS used_bytes, accrued_until FROM ${holder}
             WHERE id = ANY($1::uuid[]) AND ${held} AND accrued_until < $2),
           pieces AS (
             SELECT d.id, d.org_id, d.used_bytes, p.day AT TIME ZONE 'UTC' AS midnight,
               greatest(d.accrued_until, p.day AT TIME ZONE 'UTC') AS from_at,
               least($2, (p.day + interval '1 day') AT TIME ZONE 'UTC') AS to_at
             FROM due d, generate_series(date_trunc('day', d.accrued_until AT TIME ZONE 'UTC'),
               $2 AT TIME ZONE 'UTC' - interval '1 microsecond', interval '1 day') AS p(day)
             WHERE d.used_bytes > 0),
           longer AS (
             UPDATE storage_accruals a SET to_at = p.to_at FROM pieces p
             WHERE a.org_id = p.org_id AND a.volume_id = p.id AND a.from_at >= p.midnight AND a.from_at < p.from_at
               AND a.to_at = p.from_at AND a.used_bytes = p.used_bytes
             RETURNING a.volume_id, p.from_at),
           more AS (
             INSERT INTO storage_accruals (org_id, volume_id, from_at, to_at, used_bytes)
             SELECT p.org_id, p.id, p.from_at, p.to_at, p.used_bytes FROM pieces p
             WHERE NOT EXISTS (SELECT 1 FROM longer l WHERE l.volume_id = p.id AND l.from_at = p.from_at))
           UPDATE ${holder} v SET accrued_until = $2 FROM due d WHERE v.id = d.id`,
    values: [ids, until],
  })
}

/** Bills nothing for the time until `until` that is not recorded yet. The caller must have locked the rows. */
export async function skipStorage(tx: Queryable, holder: Holder, ids: readonly string[], until: Date): Promise<void> {
  await tx.query({
    name: `accrueStorage.skip.${holder}`,
    text: `UPDATE ${holder} SET accrued_until = greatest(accrued_until, $2) WHERE id = ANY($1::uuid[]) AND accrued_until IS NOT NULL`,
    values: [ids, until],
  })
}

/**
 * Records the past days of up to `limit` snapshots, whose sizes never change. Returns how many there were. Usage of days that are deleted
 * soon is therefore recorded before.
 */
export async function accrueSnapshotDays(tx: Queryable, midnight: Date, limit: number): Promise<number> {
  const { rows } = await tx.query<{ readonly id: string }>({
    name: 'accrueStorage.snapshotDays',
    text: `SELECT id FROM snapshots WHERE accrued_until < $1 AND deleted_at IS NULL
           ORDER BY accrued_until LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED`,
    values: [midnight, limit],
  })
  await accrueStorage(
    tx,
    'snapshots',
    rows.map(({ id }) => id),
    midnight,
  )
  return rows.length
}
