/**
 * The usage of an organization's sandboxes on each UTC day, in pages by day and sandbox. A page reads one range of the index of
 * `usage_days`, and the runs of its own sandboxes. How long it takes therefore depends on its size, not on the report's.
 */
import type { SandboxId } from '../../domain/ids.ts'
import { dayOf, DAY_MS, startOfDay } from '../../domain/usage/metering.ts'
import { NIL_UUID } from '../../lib/uuid.ts'
import type { Queryable } from '../postgres/database.ts'
import { namesOfOrg, PARTS, PENDING_RUNS, valuesOf, type SandboxName, type UsageQuery } from './usage.ts'

/** The usage of a sandbox on a UTC day (`2028-02-29`). Amounts are integers as text, because sums exceed 2^53. */
export type SandboxDay = {
  readonly sandbox_id: SandboxId
  readonly day: string
  readonly vcpu_ms: string
  readonly memory_mib_ms: string
  readonly disk_mib_ms: string
}

/** A position in a report. The next page begins after it. */
export type DayPosition = { readonly day: string; readonly sandbox_id: SandboxId }

/** What a page contains: at most `limit` rows after a position. Null: from the start of the range. */
export type PageOfDays = { readonly after: DayPosition | null; readonly limit: number }

/** The end of a page. `next` is the position of the next one. Null: there is none. */
type PageEnd = { readonly next: DayPosition | null }

/** A page of rows, by day and sandbox. A page may have fewer rows than its limit, although others follow. */
export async function sandboxDays(
  q: Queryable,
  question: UsageQuery,
  page: PageOfDays,
): Promise<PageEnd & { readonly rows: readonly SandboxDay[] }> {
  const { rows } = await q.query<SandboxDay & { readonly is_usage: boolean }>({
    name: 'usage.sandboxDays',
    text: `${pageOf(WHOLE_PAGE)}
           SELECT sandbox_id, day, vcpu_ms::text, memory_mib_ms::text, disk_mib_ms::text, is_usage FROM page ORDER BY day, sandbox_id`,
    values: pageValuesOf(question, page),
  })
  const last = rows.at(-1)
  const next = rows.length === page.limit && last !== undefined ? { day: last.day, sandbox_id: last.sandbox_id } : null
  return { rows: rows.filter(({ is_usage }) => is_usage).map(withoutMark), next }
}

function withoutMark(row: SandboxDay & { readonly is_usage?: boolean }): SandboxDay {
  const { is_usage: _, ...rest } = row
  return rest
}

/**
 * A page as JSON text: the items of a list of `SandboxDailyUsage` (openapi.json) in ASCII, and the names of the sandboxes that they are
 * about, by id. PostgreSQL writes the text, because reading the rows and rendering them took twice as long, in the thread that serves all
 * requests.
 *
 * Each day is a text of its own, which is sent while PostgreSQL writes the next. One text of 2 MB was copied six times into new memory:
 * 10,000 rows took 32 ms in place of 26 (2026-11). Most days have the same sandboxes, so equal lists of ids count once.
 */
export async function renderSandboxDays(
  q: Queryable,
  question: UsageQuery,
  page: PageOfDays,
): Promise<
  PageEnd & { readonly items: readonly string[]; readonly count: number; readonly sandboxes: readonly SandboxName[] }
> {
  const { rows } = await q.query<Rendered>({
    name: 'usage.renderSandboxDays',
    text: `${pageOf(REST_OF_PAGE)},
           added AS MATERIALIZED (${renderedByDay('page', 'FILTER (WHERE is_usage)')})
           SELECT ${RENDERED_DAY} FROM plain UNION ALL SELECT ${RENDERED_DAY} FROM added
           UNION ALL SELECT NULL, NULL, 0, 0, NULL, (
             SELECT json_agg(json_build_object('id', id, 'name', name, 'slug', slug) ORDER BY id)
             FROM (SELECT DISTINCT unnest(ids) AS id FROM (SELECT ids FROM plain UNION SELECT ids FROM added) d) u
               JOIN (${namesOfOrg('$4')}) n USING (id))`,
    values: pageValuesOf(question, page),
  })
  const items = rows.flatMap((row) => row.items ?? [])
  const [count, walked] = [sumOf(rows, 'count'), sumOf(rows, 'walked')]
  const last = rows.findLast((row) => row.day !== null)
  const next = walked === page.limit && last !== undefined ? { day: last.day, sandbox_id: last.sandbox_id } : null
  return { items, count, sandboxes: rows.at(-1)?.sandboxes ?? [], next }
}

function sumOf(rows: readonly Rendered[], column: 'count' | 'walked'): number {
  return rows.reduce((sum, row) => sum + row[column], 0)
}

/** The rows are those of the days in order, and then a row with all sandboxes. */
type Rendered = RenderedDay | RenderedEnd

/** `walked` includes rows without usage. `sandbox_id` is that of the day's last row. */
type RenderedDay = DayPosition & {
  readonly items: string | null
  readonly count: number
  readonly walked: number
  readonly sandboxes: null
}

const RENDERED_DAY = 'day, items, count, walked, sandbox_id, NULL::json AS sandboxes'

type RenderedEnd = {
  readonly day: null
  readonly items: null
  readonly count: number
  readonly walked: number
  readonly sandboxes: readonly SandboxName[] | null
}

/** SQL: the rows of each day as text, their sandboxes, and the last one. `ofUsage` is a filter for rows with usage. */
function renderedByDay(relation: string, ofUsage: string): string {
  return `SELECT day, string_agg(${ITEM}, ',' ORDER BY sandbox_id) ${ofUsage} AS items, count(*) ${ofUsage} AS count, count(*) AS walked,
        array_agg(sandbox_id ORDER BY sandbox_id) ${ofUsage} AS ids, (array_agg(sandbox_id ORDER BY sandbox_id))[count(*)::integer] AS sandbox_id
      FROM ${relation} GROUP BY day ORDER BY day`
}

/** SQL: a row of `page` as JSON text. */
const ITEM = `'{"sandbox_id":"' || sandbox_id || '","day":"' || day || 'T00:00:00Z","vcpu_seconds":' || ${secondsOf('vcpu_ms')}
  || ',"mem_mib_seconds":' || ${secondsOf('memory_mib_ms')} || ',"disk_mib_seconds":' || ${secondsOf('disk_mib_ms')} || '}'`

/**
 * SQL: a thousandth of an integer as the text of the exact decimal. A `float8` shows any decimal of at most 15 digits
 * as it is, and takes half the time of `numeric`.
 */
function secondsOf(ms: string): string {
  return `CASE WHEN ${ms} < 1000000000000000 THEN (${ms}::float8 / 1000)::text ELSE (${ms} * 0.001)::text END`
}

/**
 * SQL: the CTE `page`, sorted, of a source. Each day and sandbox with rolled up runs is a row of `usage_days`, also on
 * the days that the range only has a part of. `keys` contains the next of these. `rest` contains what their sums don't:
 * runs that are not rolled up, and the runs of partial days (`PARTS`). A row with `is_usage` false was only on the rest
 * of its day.
 *
 * A part of a day is the sum of three things. The first is runs that ended on the day (index
 * `runs_rolled_up_of_sandbox`). The second is runs that started on the day and continued past midnight
 * (`runs_across_midnight_of_sandbox`). The third is the sums of runs that lasted all day. One statement reads one
 * snapshot, so each run is either rolled up or pending. The planner overestimates how selective row-level security is,
 * and would join all runs at once. OFFSET 0 prevents that. The SELECT around the limit hides its value from the
 * planner, which would otherwise read and sort all days for each page: 25 ms in place of 9 for 31,000 (2026-11).
 */
function pageOf({ before, since, limit }: PageSource): string {
  return `WITH ${PARTS},
    pending AS (${PENDING_RUNS} WHERE org_id = $4),${before}
    keys AS MATERIALIZED (
      SELECT day, sandbox_id, vcpu_ms, memory_mib_ms, disk_mib_ms, all_day_vcpus, all_day_memory_mib, all_day_disk_mib
      FROM usage_days WHERE org_id = $4 AND day >= ${since} AND day < $6::date AND (day, sandbox_id) > ($10::date, $11::uuid)
      ORDER BY day, sandbox_id LIMIT (SELECT ${limit})),
    last AS MATERIALIZED (
      SELECT day, sandbox_id FROM keys WHERE (SELECT count(*) FROM keys) = (SELECT ${limit}) ORDER BY day DESC, sandbox_id DESC LIMIT 1),
    part_keys AS MATERIALIZED (SELECT k.*, p.since, p.until, p.since_ms, p.until_ms, p.day_at, p.next_day_at FROM parts p JOIN keys k USING (day)),
    cut AS (
      SELECT sandbox_id, '1970-01-01'::date + d::integer AS day, vcpus, memory_mib, disk_mib,
        least(to_ms, (d + 1) * 86400000) - greatest(from_ms, d * 86400000) AS ms
      FROM pending, generate_series(from_ms / 86400000, (to_ms - 1) / 86400000) d WHERE to_ms > from_ms
        AND ('1970-01-01'::date + d::integer, sandbox_id) > ($10::date, $11::uuid)
        AND ((SELECT count(*) FROM last) = 0
          OR ('1970-01-01'::date + d::integer, sandbox_id) <= ((SELECT day FROM last), (SELECT sandbox_id FROM last)))
      UNION ALL
      SELECT k.sandbox_id, day, vcpus, memory_mib, disk_mib,
        least(sandyard_ms(ended_at), until_ms) - greatest(sandyard_ms(started_at), since_ms)
      FROM part_keys k, LATERAL (
        SELECT vcpus, memory_mib, disk_mib, started_at, ended_at FROM runs
        WHERE org_id = $4 AND sandbox_id = k.sandbox_id AND rolled_up_at IS NOT NULL AND ended_at > k.since AND ended_at < k.next_day_at
          AND started_at < k.until AND started_at < ended_at OFFSET 0) r
      UNION ALL
      SELECT k.sandbox_id, day, vcpus, memory_mib, disk_mib, until_ms - greatest(sandyard_ms(started_at), since_ms)
      FROM part_keys k, LATERAL (
        SELECT vcpus, memory_mib, disk_mib, started_at FROM runs
        WHERE org_id = $4 AND sandbox_id = k.sandbox_id AND rolled_up_at IS NOT NULL
          AND (started_at AT TIME ZONE 'UTC')::date <> (ended_at AT TIME ZONE 'UTC')::date
          AND started_at > k.day_at AND started_at < k.until AND ended_at >= k.next_day_at OFFSET 0) r
      UNION ALL
      SELECT sandbox_id, day, all_day_vcpus, all_day_memory_mib, all_day_disk_mib, until_ms - since_ms FROM part_keys WHERE all_day_vcpus > 0),
    rest AS (
      SELECT day, sandbox_id, sum(vcpus * ms)::bigint AS vcpu_ms, sum(memory_mib * ms)::bigint AS memory_mib_ms,
        sum(disk_mib * ms)::bigint AS disk_mib_ms
      FROM cut GROUP BY day, sandbox_id),
    whole AS (
      SELECT day, sandbox_id, is_part, CASE WHEN is_part THEN 0 ELSE vcpu_ms END AS vcpu_ms,
        CASE WHEN is_part THEN 0 ELSE memory_mib_ms END AS memory_mib_ms, CASE WHEN is_part THEN 0 ELSE disk_mib_ms END AS disk_mib_ms
      FROM (SELECT *, day = ANY($7::date[]) AS is_part FROM keys) k),
    page AS MATERIALIZED (
      SELECT day, sandbox_id, coalesce(whole.vcpu_ms, 0) + coalesce(rest.vcpu_ms, 0) AS vcpu_ms,
        coalesce(whole.memory_mib_ms, 0) + coalesce(rest.memory_mib_ms, 0) AS memory_mib_ms,
        coalesce(whole.disk_mib_ms, 0) + coalesce(rest.disk_mib_ms, 0) AS disk_mib_ms,
        rest.vcpu_ms IS NOT NULL OR NOT is_part AS is_usage
      FROM whole FULL JOIN rest USING (day, sandbox_id) ORDER BY day, sandbox_id LIMIT (SELECT ${limit}))`
}

/** SQL: the first day of `page`, the maximum number of its rows, and the CTEs that both need. */
type PageSource = { readonly before: string; readonly since: string; readonly limit: string }

const WHOLE_PAGE: PageSource = { before: '', since: '$5::date', limit: '$12::bigint' }

/**
 * SQL: a page in two parts. The CTE `plain` renders the days before `first_added`, the first day that may need more than the sums of
 * `usage_days`. The CTE `page` contains what is left of the limit. To join and to sort 10,000 rows took a third of a statement's
 * processor time (2026-11).
 */
const REST_OF_PAGE: PageSource = {
  before: `
    first_added AS MATERIALIZED (
      SELECT least($6::date, (SELECT min(day) FROM parts WHERE day >= $10::date), (
        SELECT min(greatest('1970-01-01'::date + (from_ms / 86400000)::integer, $10::date)) FROM pending
        WHERE to_ms > from_ms AND '1970-01-01'::date + ((to_ms - 1) / 86400000)::integer >= $10::date)) AS day),
    plain AS MATERIALIZED (
      ${renderedByDay(
        `(
        SELECT day, sandbox_id, vcpu_ms, memory_mib_ms, disk_mib_ms
        FROM usage_days WHERE org_id = $4 AND day >= $5::date AND day < (SELECT day FROM first_added) AND (day, sandbox_id) > ($10::date, $11::uuid)
        ORDER BY day, sandbox_id LIMIT (SELECT $12::bigint)) k`,
        '',
      )}),`,
  since: '(SELECT day FROM first_added)',
  limit: '(SELECT $12 - coalesce(sum(walked), 0)::bigint FROM plain)',
}

function pageValuesOf(question: UsageQuery, { after, limit }: PageOfDays): readonly unknown[] {
  const { since, until } = question.range
  const end = since < until ? new Date(startOfDay(new Date(until.getTime() - 1)).getTime() + DAY_MS) : since
  const position = after ?? { day: '-infinity', sandbox_id: NIL_UUID }
  return [...valuesOf(question, { first: dayOf(since), end: dayOf(end) }), position.day, position.sandbox_id, limit]
}
