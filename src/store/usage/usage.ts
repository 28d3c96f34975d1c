/**
 * The usage of sandboxes. A run is metered from `started_at` to `ended_at`, or until now while the run is open.
 * `rollUp` adds each ended run once to its days in `usage_days` and `usage_org_days`. Until then, the run is read from
 * `runs`. Everything is counted in whole milliseconds times units. Therefore sums are exact, and the parts of a range
 * add up to the whole.
 */
import type { OrgId, SandboxId } from '../../domain/ids.ts'
import { splitAtMidnights, startOfMonth, startOfNextMonth, type TimeRange } from '../../domain/usage/metering.ts'
import { uuids } from '../postgres/binary-array.ts'
import type { Queryable } from '../postgres/database.ts'
import { HAS_HARD_LIMIT } from './included-hours.ts'

/** Amounts as text, because sums exceed 2^53. */
type AmountRow = { readonly vcpu_ms: string; readonly memory_mib_ms: string; readonly disk_mib_ms: string }

/** vCPUs, MiB of memory and MiB of disk, each times milliseconds. */
export type Amounts = { readonly vcpu_ms: bigint; readonly memory_mib_ms: bigint; readonly disk_mib_ms: bigint }

/** The parameters of a usage query: the organization, the range, and the time until which open runs are counted. */
export type UsageQuery = { readonly org_id: OrgId; readonly range: TimeRange; readonly now: Date }

/** The usage of an organization on each day of a range. A day without usage has no row. */
export async function orgDays(
  q: Queryable,
  question: UsageQuery,
): Promise<readonly (Amounts & { readonly day: string })[]> {
  const { rows } = await q.query<AmountRow & { readonly day: string }>({
    name: 'usage.orgDays',
    text: `${PIECES}
           SELECT day, ${SUMS} FROM whole FULL JOIN rest USING (day) ORDER BY day`,
    values: valuesOf(question),
  })
  return rows.map((row) => ({ day: row.day, ...exact(row) }))
}

/** The usage of an organization in the current UTC month, for comparison with its included hours. */
export async function monthTotals(q: Queryable, org: OrgId, now: Date): Promise<Amounts> {
  const days = await orgDays(q, { org_id: org, range: monthOf(now), now })
  return days.reduce<Amounts>(
    (sum, day) => ({
      vcpu_ms: sum.vcpu_ms + day.vcpu_ms,
      memory_mib_ms: sum.memory_mib_ms + day.memory_mib_ms,
      disk_mib_ms: sum.disk_mib_ms + day.disk_mib_ms,
    }),
    { vcpu_ms: 0n, memory_mib_ms: 0n, disk_mib_ms: 0n },
  )
}

/**
 * The usage in this month of every organization that has a hard limit (`org_limits.hard_cap` with included hours). It
 * reads all organizations, so `q` must use the system's connection pool.
 */
export async function hardLimitedMonthTotals(
  q: Queryable,
  now: Date,
): Promise<readonly (Amounts & { readonly org_id: OrgId })[]> {
  const { since, until } = monthOf(now)
  const { rows } = await q.query<AmountRow & { readonly org_id: OrgId }>({
    name: 'usage.hardLimitedMonthTotals',
    text: `WITH hard_limited AS MATERIALIZED (
             SELECT org_id FROM org_limits
             WHERE ${HAS_HARD_LIMIT}),
           pending AS (${PENDING_RUNS} WHERE org_id IN (SELECT org_id FROM hard_limited)),
           amounts AS (
             SELECT org_id, vcpu_ms, memory_mib_ms, disk_mib_ms FROM usage_org_days
             WHERE org_id IN (SELECT org_id FROM hard_limited) AND day >= $4::date AND day < $5::date
             UNION ALL
             SELECT org_id, vcpus::bigint * ms, memory_mib::bigint * ms, disk_mib::bigint * ms
             FROM (SELECT *, to_ms - from_ms AS ms FROM pending) p WHERE ms > 0)
           SELECT org_id, sum(vcpu_ms) AS vcpu_ms, sum(memory_mib_ms) AS memory_mib_ms, sum(disk_mib_ms) AS disk_mib_ms
           FROM amounts GROUP BY org_id`,
    values: [since.getTime(), until.getTime(), now, since.toISOString(), until.toISOString()],
  })
  return rows.map((row) => ({ org_id: row.org_id, ...exact(row) }))
}

/** The name of a sandbox, or its last one if it is deleted. */
export type SandboxName = { readonly id: SandboxId; readonly name: string; readonly slug: string }

/** SQL: the current names of an organization's sandboxes, and the last names of deleted ones. */
export function namesOfOrg(org: string): string {
  return `SELECT id, name, slug FROM sandboxes WHERE org_id = ${org} UNION ALL SELECT id, name, slug FROM pruned_sandboxes WHERE org_id = ${org}`
}

/** The names of these sandboxes, by id. */
export async function sandboxNames(
  q: Queryable,
  org: OrgId,
  ids: readonly SandboxId[],
): Promise<readonly SandboxName[]> {
  const { rows } = await q.query<SandboxName>({
    name: 'usage.sandboxNames',
    text: `SELECT id, name, slug FROM (${namesOfOrg('$1')}) n WHERE id = ANY($2) ORDER BY id`,
    values: [org, uuids(ids)],
  })
  return rows
}

/**
 * SQL: the runs that are not rolled up yet, cut to a range. `$1` and `$2` are the ends of the range in ms, and `$3` is
 * now.
 */
export const PENDING_RUNS = `
  SELECT org_id, sandbox_id, vcpus, memory_mib, disk_mib, greatest(sandyard_ms(started_at), $1::bigint) AS from_ms,
    least(sandyard_ms(coalesce(ended_at, $3::timestamptz)), $2::bigint) AS to_ms
  FROM (SELECT * FROM runs WHERE ended_at IS NULL AND started_at IS NOT NULL
        UNION ALL
        SELECT * FROM runs WHERE ended_at IS NOT NULL AND started_at IS NOT NULL AND rolled_up_at IS NULL) r`

/** SQL: the CTE `parts`: the parts of the first and last day that are in the range. `$7`, `$8` and `$9` are their days, starts and ends. */
export const PARTS = `parts AS MATERIALIZED (
      SELECT day, since, until, sandyard_ms(since) AS since_ms, sandyard_ms(until) AS until_ms,
        (day::timestamp AT TIME ZONE 'UTC') AS day_at, ((day + 1)::timestamp AT TIME ZONE 'UTC') AS next_day_at
      FROM unnest($7::date[], $8::timestamptz[], $9::timestamptz[]) AS p (day, since, until))`

/**
 * SQL: the CTEs `whole` and `rest`. Their sum by day is the usage of a range. `whole` contains the rolled-up days that
 * are entirely within the range. `rest` contains everything else: runs that are not rolled up, and the parts of the
 * first and last day that are in the range.
 *
 * A part of a day is the sum of three things. The first is runs that ended on the day (index `runs_rolled_up`). The
 * second is runs that started on the day and continued past midnight (`runs_across_midnight`). The third is the sums of
 * runs that lasted all day. One statement reads one snapshot, so each run is either rolled up or pending. The planner
 * overestimates how selective row-level security is, and would join all runs at once. OFFSET 0 prevents that. The first index has all
 * columns that are read of its runs: 39,000 of a million took 32 to 51 ms in place of 63 to 86 (2026-11).
 */
const PIECES = `WITH ${PARTS},
    pending AS (${PENDING_RUNS} WHERE org_id = $4),
    cut AS (
      SELECT '1970-01-01'::date + d::integer AS day, vcpus, memory_mib, disk_mib,
        least(to_ms, (d + 1) * 86400000) - greatest(from_ms, d * 86400000) AS ms
      FROM pending, generate_series(from_ms / 86400000, (to_ms - 1) / 86400000) d WHERE to_ms > from_ms
      UNION ALL
      SELECT day, vcpus, memory_mib, disk_mib, least(sandyard_ms(ended_at), until_ms) - greatest(sandyard_ms(started_at), since_ms)
      FROM parts p, LATERAL (
        SELECT vcpus, memory_mib, disk_mib, started_at, ended_at FROM runs
        WHERE org_id = $4 AND rolled_up_at IS NOT NULL AND ended_at > p.since AND ended_at < p.next_day_at
          AND started_at < p.until AND started_at < ended_at OFFSET 0) r
      UNION ALL
      SELECT day, vcpus, memory_mib, disk_mib, until_ms - greatest(sandyard_ms(started_at), since_ms)
      FROM parts p, LATERAL (
        SELECT vcpus, memory_mib, disk_mib, started_at FROM runs
        WHERE org_id = $4 AND rolled_up_at IS NOT NULL
          AND (started_at AT TIME ZONE 'UTC')::date <> (ended_at AT TIME ZONE 'UTC')::date
          AND started_at > p.day_at AND started_at < p.until AND ended_at >= p.next_day_at OFFSET 0) r
      UNION ALL
      SELECT day, all_day_vcpus, all_day_memory_mib, all_day_disk_mib, until_ms - since_ms
      FROM parts p, LATERAL (
        SELECT all_day_vcpus, all_day_memory_mib, all_day_disk_mib FROM usage_org_days
        WHERE org_id = $4 AND day = p.day AND all_day_vcpus > 0 OFFSET 0) d),
    whole AS (
      SELECT day, vcpu_ms, memory_mib_ms, disk_mib_ms FROM usage_org_days
      WHERE org_id = $4 AND day >= $5::date AND day < $6::date),
    rest AS (
      SELECT day, sum(vcpus * ms)::numeric AS vcpu_ms, sum(memory_mib * ms)::numeric AS memory_mib_ms,
        sum(disk_mib * ms)::numeric AS disk_mib_ms
      FROM cut GROUP BY day)`

/** SQL: the sums of `whole` and `rest`, as text because they may exceed 2^53. */
const SUMS = ['vcpu_ms', 'memory_mib_ms', 'disk_mib_ms']
  .map((column) => `(coalesce(whole.${column}, 0) + coalesce(rest.${column}, 0))::text AS ${column}`)
  .join(', ')

/** The parameters `$1` to `$9` of a usage query. `days` is the first day that `$5` names, and the end of the days (`$6`, exclusive). */
export function valuesOf(
  { org_id, range, now }: UsageQuery,
  days: { readonly first: string; readonly end: string } = splitAtMidnights(range).days,
): readonly unknown[] {
  const { parts } = splitAtMidnights(range)
  return [
    range.since.getTime(),
    range.until.getTime(),
    now,
    org_id,
    days.first,
    days.end,
    parts.map(({ day }) => day),
    parts.map(({ since }) => since.toISOString()),
    parts.map(({ until }) => until.toISOString()),
  ]
}

function monthOf(now: Date): TimeRange {
  return { since: startOfMonth(now), until: startOfNextMonth(now) }
}

function exact({ vcpu_ms, memory_mib_ms, disk_mib_ms }: AmountRow): Amounts {
  return { vcpu_ms: BigInt(vcpu_ms), memory_mib_ms: BigInt(memory_mib_ms), disk_mib_ms: BigInt(disk_mib_ms) }
}
