import { encodeCursor } from '../src/domain/requests/cursor.ts'
import { connectAdmin } from './support/admin.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import { formatMs, median, quantile } from './support/numbers.ts'
import type { ResultRow } from './support/report.ts'
import { createBody } from './support/spec.ts'

const FEW = 10_000
const MANY = 1_000_000
const GOAL = 1.5
const WARM_UP = 20
const SAMPLES = 300
/** The number of sandboxes that one statement copies. */
const COPIED_AT_ONCE = 100_000

/** A server whose tables contain the sandboxes. `middle` is a cursor to the middle of the sandbox list. */
type Filled = { readonly cloud: Cloud; readonly someId: string; readonly middle: string }

type Shape = {
  readonly what: string
  readonly ask: (filled: Filled, n: number) => Promise<unknown>
  readonly hasGoal: boolean
  /** The most that the 95th percentile among many may be. */
  readonly goalMs?: number
}

/**
 * Compares requests among a million sandboxes with the same requests among 10,000, over HTTP. Requests to the two
 * servers alternate. The goal: among a million, a request takes at most 1.5 times as long.
 */
export async function benchMillion(): Promise<readonly ResultRow[]> {
  await using few = await startCloud({ SANDYARD_DRIVER: 'simulated' })
  await using many = await startCloud({ SANDYARD_DRIVER: 'simulated' })
  const [among10k, amongMillion] = [await fill(few, FEW), await fill(many, MANY)]
  const rows: ResultRow[] = []
  for (const { what, ask, hasGoal, goalMs = null } of SHAPES) {
    const taken: { readonly few: number[]; readonly many: number[] } = { few: [], many: [] }
    for (let n = -WARM_UP; n < SAMPLES; n++) {
      const [ofFew, ofMany] = [await timed(() => ask(among10k, n)), await timed(() => ask(amongMillion, n))]
      if (n < 0) continue
      taken.few.push(ofFew)
      taken.many.push(ofMany)
    }
    const ratio = median(taken.many) / median(taken.few)
    const p95 = quantile(taken.many, 0.95)
    rows.push({
      benchmark: 'million',
      what: `${what}, among ${MANY.toLocaleString('en-US')} sandboxes`,
      measured: `p50 ${formatMs(median(taken.many))}, p95 ${formatMs(p95)}, p99 ${formatMs(quantile(taken.many, 0.99))} ms`,
      limit: `among ${FEW.toLocaleString('en-US')} p50 ${formatMs(median(taken.few))}, p99 ${formatMs(quantile(taken.few, 0.99))} ms`,
      ratio,
      goal: [hasGoal ? `<= ${String(GOAL)}` : '', goalMs === null ? '' : `p95 < ${String(goalMs)} ms`]
        .filter(Boolean)
        .join(', '),
      isMet: hasGoal || goalMs !== null ? (!hasGoal || ratio <= GOAL) && p95 < (goalMs ?? Infinity) : null,
      samples: taken,
    })
  }
  return rows
}

const SHAPES: readonly Shape[] = [
  { what: 'get by id', ask: ({ cloud, someId }) => get(cloud, `/v1/sandboxes/${someId}`), hasGoal: true },
  { what: 'get by name', ask: ({ cloud }) => get(cloud, '/v1/sandboxes/by-name/copy-777'), hasGoal: true },
  { what: 'create', ask: ({ cloud }, n) => create(cloud, `made-${String(n)}`), hasGoal: true },
  { what: 'page of 20, no label', ask: (filled) => list(filled, {}), hasGoal: true },
  { what: 'page of 20 from the middle', ask: (filled) => list(filled, {}, filled.middle), hasGoal: true },
  { what: 'page of 20, label of 0.2 %', ask: (filled) => list(filled, { rare: 'yes' }), hasGoal: true },
  { what: 'page of 20, label of 50 %', ask: (filled) => list(filled, { parity: 'even' }), hasGoal: true },
  { what: 'page of 20 from the middle, label of 50 %', ask: (filled) => list(filled, { parity: 'even' }, filled.middle), hasGoal: true },
  { what: 'page of 20, labels of 0.2 % and 50 %', ask: (filled) => list(filled, { rare: 'yes', parity: 'even' }), hasGoal: true },
  { what: 'page of 20, two labels of 50 % that 0.2 % have both', ask: (filled) => list(filled, { parity: 'even', mirror: 'odd' }), hasGoal: true },
  { what: 'page of 20, two labels of 50 % that none has both', ask: (filled) => list(filled, { parity: 'odd', mirror: 'even' }), hasGoal: true },
  { what: 'three labels of 17 %, each two on 8 %, none has all', ask: (filled) => list(filled, { a: '1', b: '1', c: '1' }), hasGoal: false, goalMs: 20 },
  { what: 'page of 20 events', ask: ({ cloud }) => get(cloud, '/v1/events?limit=20'), hasGoal: false },
  { what: 'quotas', ask: ({ cloud }) => get(cloud, '/v1/quotas'), hasGoal: true, goalMs: 20 },
] // prettier-ignore

async function timed(work: () => Promise<unknown>): Promise<number> {
  const fromMs = performance.now()
  await work()
  return performance.now() - fromMs
}

async function get(cloud: Cloud, path: string): Promise<Readonly<Record<string, unknown>>> {
  const { status, body } = await cloud.call('GET', path)
  if (status !== 200) throw new Error(`${path} was answered ${String(status)}: ${JSON.stringify(body)}`)
  return body
}

function list({ cloud }: Filled, labels: Readonly<Record<string, string>>, cursor?: string) {
  const from = cursor === undefined ? '' : `&cursor=${cursor}`
  return get(cloud, `/v1/sandboxes?limit=20&labels=${encodeURIComponent(JSON.stringify(labels))}${from}`)
}

async function create(cloud: Cloud, name: string): Promise<Readonly<Record<string, unknown>>> {
  const { status, body } = await cloud.call('POST', '/v1/sandboxes', createBody(name))
  if (status !== 200) throw new Error(`a create was answered ${String(status)}: ${JSON.stringify(body)}`)
  return body
}

/** Inserts copies of one real sandbox into the tables. Ids grow with time, as real ones do. */
async function fill(cloud: Cloud, count: number): Promise<Filled> {
  const { slug } = await create(cloud, 'template')
  const client = await connectAdmin(cloud)
  try {
    for (let from = 1; from <= count; from += COPIED_AT_ONCE) {
      await client.query(
        `WITH made AS (
           INSERT INTO sandboxes (id, org_id, name, slug, status, ephemeral, created_at, vcpus, memory_mib, abilities, spec, spec_projection, registry)
           SELECT uuidv7(), org_id, 'copy-' || n, 'copy-' || n, status, ephemeral, now(), vcpus, memory_mib, abilities, spec, spec_projection, registry
           FROM sandboxes, generate_series($2::int, $3::int) n WHERE slug = $1 ORDER BY n
           RETURNING id, org_id, substr(name, 6)::int AS n),
         events AS (
           INSERT INTO events (id, org_id, timestamp, category, event_type, sandbox_id, actor, payload)
           SELECT uuidv7(), org_id, now(), 'sandbox', 'sandbox_created', id, '{"kind":"system","code":"sandyard","label":"Sandyard"}', '{}' FROM made)
         INSERT INTO sandbox_labels (org_id, key, value, sandbox_id)
         SELECT org_id, 'parity', CASE n % 2 WHEN 0 THEN 'even' ELSE 'odd' END, id FROM made
         UNION ALL SELECT org_id, 'mirror', CASE WHEN n % 2 = 0 AND n % 500 <> 0 THEN 'even' ELSE 'odd' END, id FROM made
         UNION ALL SELECT org_id, 'rare', 'yes', id FROM made WHERE n % 500 = 0
         UNION ALL SELECT org_id, k.key, '1', id FROM made, unnest('{a,b,c}'::text[]) WITH ORDINALITY AS k(key, i)
           WHERE n % 4 = 0 AND n % 3 <> i - 1`,
        [slug, from, Math.min(count, from + COPIED_AT_ONCE - 1)],
      )
    }
    await client.query('VACUUM ANALYZE')
    const name = `copy-${String(count / 2)}`
    const { rows } = await client.query<{ readonly id: string }>('SELECT id FROM sandboxes WHERE name = $1', [name])
    const someId = rows[0]?.id
    if (someId === undefined) throw new Error('the copies are not there')
    return { cloud, someId, middle: encodeCursor('sandboxes', someId) }
  } finally {
    await client.end()
  }
}
