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
const SAMPLES = 500
const RARE_KEY = '00000000-0000-7000-8000-00000000000a'
const SOME_SANDBOX = '00000000-0000-7000-8000-000000070000'
const NO_SANDBOX = '00000000-0000-7000-8000-ffffffffffff'

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
    ['of a sandbox', `sandbox_id=${SOME_SANDBOX}`],
    ['of a sandbox that none has', `sandbox_id=${NO_SANDBOX}`],
    ['of an API key with 0.01 %', `actor=${RARE_KEY}`],
    ['of the operator, mostly none', 'actor=operator'],
    ['of a category of 100 %', 'category=sandbox'],
    ['of a category that none has', 'category=volume'],
    ['of an API key with 0.01 % and a type of 50 %, mostly none', `actor=${RARE_KEY}&event_type=sandbox_running`],
    ['by a cursor in the middle', `cursor=${page.next_cursor}`],
  ]
}

/**
 * Inserts events over a range of 90 days, in order of time. Resolves with the id and time of an event in the middle.
 */
async function fill(admin: Client, org: string): Promise<{ readonly middle: Date; readonly id: string }> {
  await admin.query(
    `INSERT INTO events (id, org_id, timestamp, category, event_type, sandbox_id, actor, payload)
     SELECT uuidv7(age), $1, date_trunc('milliseconds', now() + age), 'sandbox',
       CASE WHEN n % 10000 = 7 THEN 'sandbox_renamed' WHEN n % 2 = 0 THEN 'sandbox_running' ELSE 'sandbox_' || n % 7 END,
       ('00000000-0000-7000-8000-' || lpad((n / 7)::text, 12, '0'))::uuid,
       CASE WHEN n % 10000 = 7 THEN $2 ELSE '{"kind":"system","code":"sandyard","label":"Sandyard"}' END::json, json_build_object('sandbox_id', gen_random_uuid(), 'cause', 'worker_report')
     FROM (SELECT n, (n - ${String(EVENTS)}) * interval '${String(DAYS)} days' / ${String(EVENTS)} AS age
           FROM generate_series(1, ${String(EVENTS)}) n) s`,
    [org, JSON.stringify({ kind: 'api_key', api_key_id: RARE_KEY, name: 'rare' })],
  )
  await admin.query('VACUUM ANALYZE')
  await admin.query('CHECKPOINT') // otherwise it writes what was inserted while pages are read
  const { rows } = await admin.query<{ readonly id: string; readonly timestamp: Date }>(
    `SELECT id, timestamp FROM events WHERE timestamp > now() - interval '${String(DAYS / 2)} days' ORDER BY id LIMIT 1`,
  )
  const [row] = rows
  if (row === undefined) throw new Error('there is no event in the middle')
  return { middle: row.timestamp, id: row.id }
}
