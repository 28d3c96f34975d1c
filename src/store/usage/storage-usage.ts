/**
 * How much volumes and snapshots held over time. A snapshot is metered like a volume whose size never changes, under its own
 * id. The sources are the recorded intervals (`storage_accruals`, kept after a volume is
 * deleted), the days of organizations whose intervals are deleted (`storage_org_days`), and, for what is active, the time
 * since the last interval at its current size. All amounts are in bytes
 * times milliseconds, so that sums are exact.
 */
import type { OrgId, VolumeId } from '../../domain/ids.ts'
import { splitAtMidnights, startOfDay } from '../../domain/usage/metering.ts'
import type { BillingTerms } from '../../domain/usage/pricing.ts'
import type { Queryable } from '../postgres/database.ts'
import type { UsageQuery } from './usage.ts'

/**
 * How much a volume held on a UTC day, in bytes times milliseconds. Both amounts begin at midnight: `before_byte_ms`
 * ends at the start of the range, and `until_byte_ms` at its end. Their difference is the amount within the range. Both
 * are returned so that rounded figures of adjacent ranges add up.
 */
export type VolumeDay = {
  readonly volume_id: VolumeId
  readonly day: string
  readonly before_byte_ms: bigint
  readonly until_byte_ms: bigint
}

/**
 * How much each volume held on each day of a range: at most `limit` rows, by day and volume. A day with no usage has no
 * row.
 */
export async function volumeDays(q: Queryable, question: UsageQuery, limit: number): Promise<readonly VolumeDay[]> {
  type Row = Pick<VolumeDay, 'volume_id' | 'day'> & { readonly before: string; readonly until: string }
  const { rows } = await q.query<Row>({
    name: 'storageUsage.volumeDays',
    text: `${HELD} SELECT volume_id, day, sum(used_bytes * before_ms) AS before, sum(used_bytes * until_ms) AS until
           FROM held WHERE used_bytes > 0 GROUP BY day, volume_id
           HAVING sum(used_bytes * until_ms) > sum(used_bytes * before_ms) ORDER BY day, volume_id LIMIT $6`,
    values: [...valuesOf(question), limit],
  })
  return rows.map(({ volume_id, day, before, until }) => {
    return { volume_id, day, before_byte_ms: BigInt(before), until_byte_ms: BigInt(until) }
  })
}

/**
 * How much all volumes of an organization held on each day of a range. A day with no usage has no row. Of days whose
 * intervals are deleted, there are only the sums.
 */
export async function storageDays(
  q: Queryable,
  question: UsageQuery,
): Promise<readonly { readonly day: string; readonly byte_ms: bigint }[]> {
  const { days } = splitAtMidnights(question.range)
  const { rows } = await q.query<{ readonly day: string; readonly byte_ms: string }>({
    name: 'storageUsage.storageDays',
    text: `${HELD} SELECT day, sum(byte_ms) AS byte_ms FROM (
             SELECT day, used_bytes * (until_ms - before_ms) AS byte_ms FROM held
             UNION ALL
             SELECT day, byte_ms FROM storage_org_days WHERE org_id = $1 AND day >= $6::date AND day < $7::date) d
           GROUP BY day ORDER BY day`,
    values: [...valuesOf(question), days.first, days.end],
  })
  return rows.map(({ day, byte_ms }) => ({ day, byte_ms: BigInt(byte_ms) }))
}

/**
 * The bytes that the active volumes and the snapshots of an organization hold, the volumes by the workers' latest
 * reports. Null if no size was reported.
 */
export async function heldBytes(q: Queryable, org: OrgId): Promise<bigint | null> {
  const { rows } = await q.query<{ readonly bytes: string | null }>({
    name: 'storageUsage.heldBytes',
    text: `SELECT sum(bytes) AS bytes FROM (
             SELECT used_bytes AS bytes FROM volumes WHERE org_id = $1 AND status = 'active'
             UNION ALL
             SELECT size_bytes FROM snapshots WHERE org_id = $1 AND deleted_at IS NULL AND accrued_until IS NOT NULL) held`,
    values: [org],
  })
  const bytes = rows[0]?.bytes ?? null
  return bytes === null ? null : BigInt(bytes)
}

/** The names of those given volumes and snapshots that still exist. The default volume has no name. */
export async function volumeNames(
  q: Queryable,
  org: OrgId,
  ids: readonly VolumeId[],
): Promise<readonly { readonly id: VolumeId; readonly name: string | null }[]> {
  const { rows } = await q.query<{ readonly id: VolumeId; readonly name: string | null }>({
    name: 'storageUsage.volumeNames',
    text: `SELECT id, name FROM volumes WHERE org_id = $1 AND id = ANY($2)
           UNION ALL SELECT id, name FROM snapshots WHERE org_id = $1 AND id = ANY($2) AND deleted_at IS NULL ORDER BY id`,
    values: [org, ids],
  })
  return rows
}

/** The pricing terms of an organization; null if it doesn't exist. */
export async function pricingTermsOf(q: Queryable, org: OrgId): Promise<BillingTerms | null> {
  const { rows } = await q.query<BillingTerms>({
    name: 'storageUsage.termsOf',
    text: `SELECT prices, included_vcpu_hours, included_memory_gib_hours, included_disk_gib_hours, included_storage_gib
           FROM org_limits WHERE org_id = $1`,
    values: [org],
  })
  return rows[0] ?? null
}

/**
 * SQL: the CTE `held`, with one row per interval and day. A row contains the amount before the range's start and the
 * amount before its end. No interval crosses midnight, so all intervals of the first day start at or after its
 * midnight.
 */
const HELD = `WITH intervals AS (
    SELECT volume_id, used_bytes, sandyard_ms(from_at) AS from_ms, sandyard_ms(to_at) AS to_ms FROM storage_accruals
    WHERE org_id = $1 AND from_at >= $2::timestamptz AND from_at < to_timestamp($4::bigint / 1000.0)
    UNION ALL
    SELECT id, used_bytes, greatest(from_ms, d * 86400000), least(to_ms, (d + 1) * 86400000)
    FROM (SELECT id, used_bytes, sandyard_ms(greatest(accrued_until, $2::timestamptz)) AS from_ms,
            least(sandyard_ms($5::timestamptz), $4::bigint) AS to_ms
          FROM (SELECT id, used_bytes, accrued_until FROM volumes WHERE org_id = $1 AND status = 'active'
                UNION ALL
                SELECT id, size_bytes, accrued_until FROM snapshots WHERE org_id = $1 AND deleted_at IS NULL) s
          WHERE used_bytes > 0 AND accrued_until IS NOT NULL) v,
      generate_series(from_ms / 86400000, (to_ms - 1) / 86400000) d WHERE to_ms > from_ms),
  held AS (
    SELECT volume_id, '1970-01-01'::date + (from_ms / 86400000)::integer AS day, used_bytes::numeric,
      greatest(0, least(to_ms, $3::bigint) - from_ms) AS before_ms, greatest(0, least(to_ms, $4::bigint) - from_ms) AS until_ms
    FROM intervals)`

function valuesOf({ org_id, range, now }: UsageQuery): readonly unknown[] {
  const { since, until } = range
  return [org_id, startOfDay(since).toISOString(), since.getTime(), until.getTime(), now]
}
