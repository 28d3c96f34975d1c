/**
 * What sandboxes took, read and rolled up. The metered interval of a run goes from `started_at` to `ended_at`, or to now
 * while it is open. A run that ended is added to the days of `usage_days` and `usage_org_days` once (`rollUp`); until
 * then readers look at the run itself. All is counted in whole milliseconds times units, so that sums are exact and the
 * parts of a range add up to it.
 */
import type { OrgId, SandboxId } from '../domain/ids.ts'
import { cutAtMidnights, startOfMonth, startOfNextMonth, type TimeRange } from '../domain/metering.ts'
import type { Queryable } from './database.ts'

/** Whole numbers as text: sums go beyond 2^53. */
type AmountRow = { readonly vcpu_ms: string; readonly memory_mib_ms: string; readonly disk_mib_ms: string }

/** vCPUs, MiB of memory and MiB of disk, each times milliseconds. */
export type Amounts = { readonly vcpu_ms: bigint; readonly memory_mib_ms: bigint; readonly disk_mib_ms: bigint }

/** What a sandbox took on a UTC day (`2028-02-29`); amounts are whole numbers as text. */
export type SandboxDay = AmountRow & { readonly sandbox_id: SandboxId; readonly day: string }

/** What a range is read with: the range, and the instant that open runs have reached. */
export type UsageQuestion = { readonly org_id: OrgId; readonly range: TimeRange; readonly now: Date }

/**
 * What an organization's sandboxes took on each day of a range, by day and sandbox; at most `limit` rows. Of a range within
 * one day, `after` leads on: only sandboxes after that one.
 */
export async function sandboxDays(
  q: Queryable,
  question: UsageQuestion,
  { limit, after = null }: { readonly limit: number; readonly after?: SandboxId | null },
): Promise<readonly SandboxDay[]> {
  const { rows } = await q.query<SandboxDay>({
    name: 'usage.sandboxDays',
    text: `${amountsOf('usage_days')}
           SELECT sandbox_id, day, sum(vcpu_ms) AS vcpu_ms, sum(memory_mib_ms) AS memory_mib_ms,
             sum(disk_mib_ms) AS disk_mib_ms
           FROM amounts WHERE $11::uuid IS NULL OR sandbox_id > $11
           GROUP BY day, sandbox_id ORDER BY day, sandbox_id LIMIT $10`,
    values: [...valuesOf(question), limit, after],
  })
  return rows
}

/** What an organization took on each day of a range; a day without usage has no row. */
export async function orgDays(
  q: Queryable,
  question: UsageQuestion,
): Promise<readonly (Amounts & { readonly day: string })[]> {
  const { rows } = await q.query<AmountRow & { readonly day: string }>({
    name: 'usage.orgDays',
    text: `${amountsOf('usage_org_days')}
           SELECT day, sum(vcpu_ms) AS vcpu_ms, sum(memory_mib_ms) AS memory_mib_ms, sum(disk_mib_ms) AS disk_mib_ms
           FROM amounts GROUP BY day ORDER BY day`,
    values: valuesOf(question),
  })
  return rows.map((row) => ({ day: row.day, ...exact(row) }))
}

/** What an organization took since the UTC month began: what its monthly pools are compared with. */
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
 * The same for every organization whose pools are walls (`org_limits.hard_cap`, with a pool of vCPU or memory hours) and
 * that took something this month. For a loop: it sees all organizations, so `q` is the system's.
 */
export async function poolTotals(q: Queryable, now: Date): Promise<readonly (Amounts & { readonly org_id: OrgId })[]> {
  const { since, until } = monthOf(now)
  const { rows } = await q.query<AmountRow & { readonly org_id: OrgId }>({
    name: 'usage.poolTotals',
    text: `WITH walled AS MATERIALIZED (
             SELECT org_id FROM org_limits
             WHERE hard_cap AND (included_vcpu_hours IS NOT NULL OR included_memory_gib_hours IS NOT NULL)),
           pending AS (${PENDING_RUNS} WHERE org_id IN (SELECT org_id FROM walled)),
           amounts AS (
             SELECT org_id, vcpu_ms, memory_mib_ms, disk_mib_ms FROM usage_org_days
             WHERE org_id IN (SELECT org_id FROM walled) AND day >= $4::date AND day < $5::date
             UNION ALL
             SELECT org_id, vcpus::bigint * ms, memory_mib::bigint * ms, disk_mib::bigint * ms
             FROM (SELECT *, to_ms - from_ms AS ms FROM pending) p WHERE ms > 0)
           SELECT org_id, sum(vcpu_ms) AS vcpu_ms, sum(memory_mib_ms) AS memory_mib_ms, sum(disk_mib_ms) AS disk_mib_ms
           FROM amounts GROUP BY org_id`,
    values: [since.getTime(), until.getTime(), now, since.toISOString(), until.toISOString()],
  })
  return rows.map((row) => ({ org_id: row.org_id, ...exact(row) }))
}

/** How sandboxes were last called, deleted ones as well. */
export async function sandboxNames(
  q: Queryable,
  org: OrgId,
  ids: readonly SandboxId[],
): Promise<readonly { readonly id: SandboxId; readonly name: string; readonly slug: string }[]> {
  const { rows } = await q.query<{ readonly id: SandboxId; readonly name: string; readonly slug: string }>({
    name: 'usage.sandboxNames',
    text: 'SELECT id, name, slug FROM sandboxes WHERE org_id = $1 AND id = ANY($2) ORDER BY id',
    values: [org, ids],
  })
  return rows
}

/** The runs of one organization that no day holds yet, cut to a range: `$1` and `$2` in ms, `$3` now. */
const PENDING_RUNS = `
  SELECT org_id, sandbox_id, vcpus, memory_mib, disk_mib, greatest(sandyard_ms(started_at), $1::bigint) AS from_ms,
    least(sandyard_ms(coalesce(ended_at, $3::timestamptz)), $2::bigint) AS to_ms
  FROM (SELECT * FROM runs WHERE ended_at IS NULL AND started_at IS NOT NULL
        UNION ALL
        SELECT * FROM runs WHERE ended_at IS NOT NULL AND started_at IS NOT NULL AND rolled_up_at IS NULL) r`

/**
 * The CTE `amounts`: what was taken in a range, in pieces to add up. `days` are rolled up whole. Of the days at the ends
 * of the range only a part counts: of rolled up runs that part is cut from those that ended on that day (`runs_rolled_up`)
 * or started on it and went on (`runs_across_midnight`), and from the units that ran all day; no other run touches it. One
 * statement is one snapshot, so that a run is met either as rolled up or as pending.
 */
function amountsOf(table: 'usage_days' | 'usage_org_days'): string {
  const by = table === 'usage_days' ? 'sandbox_id, ' : ''
  return `WITH parts AS MATERIALIZED (
      SELECT day, since, until, sandyard_ms(since) AS since_ms, sandyard_ms(until) AS until_ms,
        (day::timestamp AT TIME ZONE 'UTC') AS day_at, ((day + 1)::timestamp AT TIME ZONE 'UTC') AS next_day_at
      FROM unnest($7::date[], $8::timestamptz[], $9::timestamptz[]) AS p (day, since, until)),
    pending AS (${PENDING_RUNS} WHERE org_id = $4),
    pieces AS (
      SELECT sandbox_id, '1970-01-01'::date + d::integer AS day, vcpus, memory_mib, disk_mib,
        least(to_ms, (d + 1) * 86400000) - greatest(from_ms, d * 86400000) AS ms
      FROM pending, generate_series(from_ms / 86400000, (to_ms - 1) / 86400000) d WHERE to_ms > from_ms
      UNION ALL
      SELECT r.sandbox_id, p.day, r.vcpus, r.memory_mib, r.disk_mib,
        least(sandyard_ms(r.ended_at), p.until_ms) - greatest(sandyard_ms(r.started_at), p.since_ms)
      FROM parts p JOIN runs r ON r.org_id = $4 AND r.rolled_up_at IS NOT NULL AND r.ended_at > p.since
        AND r.ended_at < p.next_day_at AND r.started_at < p.until
      UNION ALL
      SELECT r.sandbox_id, p.day, r.vcpus, r.memory_mib, r.disk_mib,
        p.until_ms - greatest(sandyard_ms(r.started_at), p.since_ms)
      FROM parts p JOIN runs r ON r.org_id = $4 AND r.rolled_up_at IS NOT NULL
        AND (r.started_at AT TIME ZONE 'UTC')::date <> (r.ended_at AT TIME ZONE 'UTC')::date
        AND r.started_at > p.day_at AND r.started_at < p.until AND r.ended_at >= p.next_day_at),
    amounts AS (
      SELECT ${by}day, vcpu_ms, memory_mib_ms, disk_mib_ms FROM ${table}
      WHERE org_id = $4 AND day >= $5::date AND day < $6::date
      UNION ALL
      SELECT ${by}d.day, all_day_vcpus * ms, all_day_memory_mib * ms, all_day_disk_mib * ms
      FROM (SELECT day, until_ms - since_ms AS ms FROM parts) p JOIN ${table} d ON d.org_id = $4 AND d.day = p.day
      WHERE all_day_vcpus > 0
      UNION ALL
      SELECT ${by}day, vcpus::bigint * ms, memory_mib::bigint * ms, disk_mib::bigint * ms FROM pieces WHERE ms > 0)`
}

function valuesOf({ org_id, range, now }: UsageQuestion): readonly unknown[] {
  const { days, parts } = cutAtMidnights(range)
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
