import type { Client } from 'pg'
import { connectAdmin } from './support/admin.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import { formatMs, median, quantile } from './support/numbers.ts'
import type { ResultRow } from './support/report.ts'
import { fetchBytes, sampleLatenciesMs } from './support/sample.ts'
import { createBody } from './support/spec.ts'

const EVENTS = 1_000_000
const DAYS = 90
const GOAL_MS = 10
const SAMPLES = 200

/**
 * Reads a page of 20 among a million events over HTTP, one request at a time. The limit is a read of one event by its
 * id.
 */
export async function benchEvents(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({ SANDYARD_DRIVER: 'simulated' })
  const admin = await connectAdmin(cloud)
  try {
    const { status, body } = await cloud.call('POST', '/v1/sandboxes', { ...createBody('bench-events'), labels: {} })
    if (status !== 200) throw new Error(`the template was refused: ${JSON.stringify(body)}`)
    const { middle, id } = await fill(admin, String(body['org_id']))
    const bare = await sampleLatenciesMs(SAMPLES, () => fetchBytes(cloud, `/v1/events/${id}`))
    const rows: ResultRow[] = []
    for (const [what, query] of await shapesOf(cloud, middle)) {
      const path = `/v1/events?limit=20&${query}`
      const found: { readonly data: readonly unknown[] } = JSON.parse((await fetchBytes(cloud, path)).toString())
      if (found.data.length === 0 && !what.includes('none')) throw new Error(`${path} found nothing`)
      const ours = await sampleLatenciesMs(SAMPLES, () => fetchBytes(cloud, path))
      const p99 = quantile(ours, 0.99)
      rows.push({
        benchmark: 'events',
        what: `page of 20 of a million events, ${what}`,
        measured: `p50 ${formatMs(median(ours))}, p99 ${formatMs(p99)} ms`,
        limit: `one event by id ${formatMs(median(bare))} ms`,
        ratio: median(ours) / median(bare),
        goal: `p99 < ${String(GOAL_MS)} ms`,
        isMet: p99 < GOAL_MS,
        samples: { ours, bare },
      })
    }
    return rows
  } finally {
    await admin.end()
  }
}

async function shapesOf(cloud: Cloud, middle: Date): Promise<readonly (readonly [what: string, query: string])[]> {
  const hourLater = new Date(middle.getTime() + 3_600_000).toISOString()
  const range = `since=${middle.toISOString()}&until=${hourLater}`
  const page: { readonly next_cursor: string } = JSON.parse(
    (await fetchBytes(cloud, `/v1/events?until=${middle.toISOString()}`)).toString(),
  )
  return [
    ['the newest', ''],
    ['of a type of 50 %', 'event_type=sandbox_running'],
    ['of a type of 0.01 %', 'event_type=sandbox_renamed'],
    ['of a type that none has', 'event_type=never_heard_of'],
    ['an hour in the middle', range],
    ['an hour in the middle, of a type of 50 %', `${range}&event_type=sandbox_running`],
    ['an hour in the middle, of a type of 0.01 %, mostly none', `${range}&event_type=sandbox_renamed`],
    ['by a cursor in the middle', `cursor=${page.next_cursor}`],
  ]
}

/**
 * Inserts events over a range of 90 days, in order of time. Resolves with the id and time of an event in the middle.
 */
async function fill(admin: Client, org: string): Promise<{ readonly middle: Date; readonly id: string }> {
  await admin.query(
    `INSERT INTO events (id, org_id, timestamp, category, event_type, actor, payload)
     SELECT uuidv7(age), $1, date_trunc('milliseconds', now() + age), 'sandbox',
       CASE WHEN n % 10000 = 7 THEN 'sandbox_renamed' WHEN n % 2 = 0 THEN 'sandbox_running' ELSE 'sandbox_' || n % 7 END,
       '{"kind":"system","code":"sandyard","label":"Sandyard"}', json_build_object('sandbox_id', gen_random_uuid(), 'cause', 'worker_report')
     FROM (SELECT n, (n - ${String(EVENTS)}) * interval '${String(DAYS)} days' / ${String(EVENTS)} AS age
           FROM generate_series(1, ${String(EVENTS)}) n) s`,
    [org],
  )
  await admin.query('VACUUM ANALYZE')
  const { rows } = await admin.query<{ readonly id: string; readonly timestamp: Date }>(
    `SELECT id, timestamp FROM events WHERE timestamp > now() - interval '${String(DAYS / 2)} days' ORDER BY id LIMIT 1`,
  )
  const [row] = rows
  if (row === undefined) throw new Error('there is no event in the middle')
  return { middle: row.timestamp, id: row.id }
}
