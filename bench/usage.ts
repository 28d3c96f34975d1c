import type { Client } from 'pg'
import { DAY_MS, startOfDay } from '../src/domain/usage/metering.ts'
import { connectAdmin } from './support/admin.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import { formatMs, median, formatRate, quantile } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import type { ResultRow } from './support/report.ts'
import { fetchBytes, sampleLatenciesMs } from './support/sample.ts'
import { createBody } from './support/spec.ts'

const RUNS = 1_000_000
const SANDBOXES = 1_000
const DAYS = 31
const GOAL_MS = 100
/** The goal for rows of a report by sandbox, in pages or all at once, a second. */
const ROWS_GOAL = 200_000
const SAMPLES = 25

type Range = { readonly since: Date; readonly until: Date }
type Report = { readonly what: string; readonly path: string; readonly limit: string; readonly hasGoal: boolean }

/**
 * Reads usage reports over HTTP, for a million runs of a thousand sandboxes in 31 days. The limit is the time of plain
 * SQL queries for the same rows.
 */
export async function benchUsage(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({ SANDYARD_DRIVER: 'simulated' })
  const admin = await connectAdmin(cloud)
  try {
    const until = startOfDay(new Date(performance.timeOrigin))
    const month = { since: new Date(until.getTime() - DAYS * DAY_MS), until }
    const org = await fill(cloud, admin, month)
    const rolledUp = await untilRolledUp(admin)
    await admin.query('VACUUM ANALYZE')
    const rows: ResultRow[] = [rolledUp]
    for (const report of reportsOn(org, month)) rows.push(await measure(cloud, admin, report))
    rows.push(await measureRows(cloud, admin, { org, range: month, pageRows: 10_000 }))
    rows.push(await measureRows(cloud, admin, { org, range: month, pageRows: null }))
    return rows
  } finally {
    await admin.end()
  }
}

function reportsOn(org: string, month: Range): readonly Report[] {
  const cut = {
    since: new Date(month.since.getTime() + DAY_MS + 40_000_123),
    until: new Date(month.until.getTime() - DAY_MS - 30_000_456),
  }
  const { days, where } = daysOf(org, month)
  const sums = 'sum(vcpu_ms), sum(memory_mib_ms), sum(disk_mib_ms)'
  const total = `SELECT day, ${sums} FROM usage_days WHERE ${where} GROUP BY day`
  const bySandbox = (of: string, range: Range): readonly Report[] => [
    {
      what: `usage by sandbox, ${of}, first page of 1,000`,
      path: `/v1/billing/usage/sandbox?${query(range)}&limit=1000`,
      limit: `${days} ORDER BY day, sandbox_id LIMIT 1000`,
      hasGoal: true,
    },
    {
      what: `usage by sandbox, ${of}, all at once`,
      path: `/v1/billing/usage/sandbox?${query(range)}`,
      limit: days,
      hasGoal: false,
    },
  ]
  return [
    ...bySandbox('31 days', month),
    ...bySandbox('cut within days', cut),
    { what: 'usage, 31 days', path: `/v1/billing/usage?${query(month)}`, limit: total, hasGoal: true },
    { what: 'usage, cut within days', path: `/v1/billing/usage?${query(cut)}`, limit: total, hasGoal: true },
    { what: 'usage, this month', path: '/v1/billing/usage', limit: total, hasGoal: true },
    { what: 'quotas', path: '/v1/quotas', limit: total, hasGoal: true },
  ]
}

const query = ({ since, until }: Range): string => `since=${since.toISOString()}&until=${until.toISOString()}`

/** The SQL that reads the rolled up days of a range, and its condition. */
function daysOf(org: string, { since, until }: Range): { readonly days: string; readonly where: string } {
  const where = `org_id = '${org}' AND day >= '${since.toISOString()}' AND day < '${until.toISOString()}'`
  return { days: `SELECT sandbox_id, day, vcpu_ms, memory_mib_ms, disk_mib_ms FROM usage_days WHERE ${where}`, where }
}

/**
 * Reads all rows of a report by sandbox: its pages, one after the other, or without pages all at once. What the client does with a reply is
 * not counted. The limit reads the same rows by one bare SELECT.
 */
async function measureRows(
  cloud: Cloud,
  admin: Client,
  { org, range, pageRows }: { readonly org: string; readonly range: Range; readonly pageRows: number | null },
): Promise<ResultRow> {
  const limit = pageRows === null ? '' : `&limit=${String(pageRows)}`
  const readAll = async (): Promise<{ readonly ms: number; readonly rows: number }> => {
    let [ms, rows] = [0, 0]
    for (let cursor = ''; ;) {
      const fromMs = performance.now()
      const bytes = await fetchBytes(cloud, `/v1/billing/usage/sandbox?${query(range)}${limit}${cursor}`)
      ms += performance.now() - fromMs
      const page: UsagePage = JSON.parse(bytes.toString())
      rows += page.rows.length
      if ((page.next_cursor ?? null) === null) return { ms, rows }
      cursor = `&cursor=${String(page.next_cursor)}`
    }
  }
  const { rows } = await readAll()
  const ours: number[] = []
  while (ours.length < SAMPLES) ours.push((await readAll()).ms)
  const { days } = daysOf(org, range)
  const bare = await sampleLatenciesMs(SAMPLES, () => admin.query({ text: days, rowMode: 'array' }))
  const [rate, bareRate] = [(rows / median(ours)) * 1000, (rows / median(bare)) * 1000]
  return {
    benchmark: 'usage',
    what: `usage by sandbox, 31 days, ${pageRows === null ? 'rows of a reply with all' : 'all pages of 10,000'}`,
    measured: `${formatRate(rate)} rows`,
    limit: `bare SELECT of the days ${formatRate(bareRate)} rows`,
    ratio: rate / bareRate,
    goal: `>= ${ROWS_GOAL.toLocaleString('en-US')} /s`,
    isMet: rate >= ROWS_GOAL,
    samples: { ours, bare, rows },
  }
}

/** The reply without pages has no cursor. */
type UsagePage = { readonly rows: readonly unknown[]; readonly next_cursor?: string | null }

async function measure(cloud: Cloud, admin: Client, { what, path, limit, hasGoal }: Report): Promise<ResultRow> {
  const bytes = await fetchBytes(cloud, path)
  const ours = await sampleLatenciesMs(SAMPLES, () => fetchBytes(cloud, path))
  const bare = await sampleLatenciesMs(SAMPLES, () => admin.query({ text: limit, rowMode: 'array' }))
  const p95 = quantile(ours, 0.95)
  return {
    benchmark: 'usage',
    what: `${what}, ${(RUNS / 1e6).toFixed(0)} million runs`,
    measured: `p50 ${formatMs(median(ours))}, p95 ${formatMs(p95)} ms (${(bytes.length / 1e6).toFixed(1)} MB)`,
    limit: `bare SELECT of the days ${formatMs(median(bare))} ms`,
    ratio: median(ours) / median(bare),
    goal: hasGoal ? `p95 < ${String(GOAL_MS)} ms` : '',
    isMet: hasGoal ? p95 < GOAL_MS : null,
    samples: { ours, bare },
  }
}

/**
 * Inserts runs of about half an hour, one after another, in the order of their starts. Every tenth sandbox also gets a
 * few runs of about three days, which overlap the others.
 */
async function fill(cloud: Cloud, admin: Client, { since, until }: Range): Promise<string> {
  const { status, body } = await cloud.call('POST', '/v1/sandboxes', { ...createBody('bench-usage'), labels: {} })
  if (status !== 200) throw new Error(`the template was refused: ${JSON.stringify(body)}`)
  await admin.query(
    `INSERT INTO sandboxes (id, org_id, name, slug, status, ephemeral, created_at, vcpus, memory_mib, abilities, spec, spec_projection, registry)
     SELECT uuidv7(), org_id, 'copy-' || n, 'copy-' || n, status, ephemeral, now(), vcpus, memory_mib, abilities, spec, spec_projection, registry
     FROM sandboxes, generate_series(1, ${String(SANDBOXES)}) n WHERE slug = $1 ORDER BY n`,
    [body['slug']],
  )
  await admin.query(
    `WITH numbered AS (SELECT id, org_id, substr(name, 6)::int AS n FROM sandboxes WHERE slug LIKE 'copy-%'),
       steps AS (SELECT ($2::timestamptz - $1::timestamptz) / ${String(RUNS / SANDBOXES)} AS step),
       made AS (
         SELECT id, org_id, $1::timestamptz + step * r + step * random() * 0.3 AS start_at, step * (0.1 + random() * 0.6) AS length
         FROM numbered, steps, generate_series(0, ${String(RUNS / SANDBOXES - 1)}) r
         UNION ALL
         SELECT id, org_id, $1::timestamptz + interval '3 days' * r + interval '1 hour' * random(), interval '65 hours'
         FROM numbered, generate_series(0, 9) r WHERE n % 10 = 0)
     INSERT INTO runs (id, org_id, sandbox_id, vcpus, memory_mib, disk_mib, opened_at, started_at, ended_at)
     SELECT gen_random_uuid(), org_id, id, 2, 1024, 10240, at, at, date_trunc('milliseconds', at + length)
     FROM (SELECT *, date_trunc('milliseconds', start_at) AS at FROM made) m ORDER BY at`,
    [since, until],
  )
  return String(body['org_id'])
}

/**
 * Waits until the server's loop has rolled up all runs. Resolves with the loop's rate, measured from its first batch
 * on.
 */
async function untilRolledUp(admin: Client): Promise<ResultRow> {
  const pending = async (): Promise<number> => {
    const { rows } = await admin.query<{ readonly count: string }>(
      'SELECT count(*) AS count FROM runs WHERE rolled_up_at IS NULL AND started_at IS NOT NULL AND ended_at IS NOT NULL',
    )
    return Number(rows[0]?.count)
  }
  const all = await pending()
  while ((await pending()) === all) await pause(50)
  const fromMs = performance.now()
  const from = await pending()
  while ((await pending()) > 0) await pause(1_000)
  const rate = from / ((performance.now() - fromMs) / 1000)
  return {
    benchmark: 'usage',
    what: 'runs rolled up by the loop',
    measured: formatRate(rate),
    limit: '',
    ratio: null,
    goal: '',
    isMet: null,
    samples: { rate, runs: from },
  }
}
