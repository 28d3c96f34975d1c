import { connectAdmin } from './support/admin.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import { formatMs, quantile } from './support/numbers.ts'
import type { ResultRow } from './support/report.ts'
import { runLoad } from './support/run-load.ts'
import { createBody } from './support/spec.ts'

const SANDBOXES = 100_000
const GOAL_MS = 10

type Shape = { readonly what: string; readonly labels: Readonly<Record<string, string>>; readonly hasGoal: boolean }

const SHAPES: readonly Shape[] = [
  { what: 'label of 0.1 %', labels: { rare: 'yes' }, hasGoal: true },
  { what: 'label of 50 %', labels: { parity: 'even' }, hasGoal: true },
  { what: 'no label', labels: {}, hasGoal: false },
  { what: 'labels of 0.1 % and 50 %', labels: { rare: 'yes', parity: 'even' }, hasGoal: false },
  { what: 'two labels of 50 % that no sandbox has both', labels: { parity: 'even', other: 'odd' }, hasGoal: false },
]

/** Reads a page of 20 among 100,000 sandboxes over HTTP, one request at a time. */
export async function benchList(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({ SANDYARD_DRIVER: 'simulated' })
  await fill(cloud)
  const rows: ResultRow[] = []
  for (const shape of SHAPES) {
    const query = `limit=20&labels=${encodeURIComponent(JSON.stringify(shape.labels))}`
    const { latenciesMs } = await runLoad({
      host: cloud.host,
      port: cloud.port,
      connections: 1,
      warmupMs: 1_500,
      durationMs: 4_000,
      method: 'GET',
      path: `/v1/sandboxes?${query}`,
      headers: { authorization: cloud.headers['authorization'] ?? '' },
      body: '',
      expectedStatus: 200,
    })
    const p99 = quantile(latenciesMs, 0.99)
    rows.push({
      benchmark: 'list',
      what: `page of 20 of 100,000, ${shape.what}`,
      measured: `p50 ${formatMs(quantile(latenciesMs, 0.5))}, p99 ${formatMs(p99)} ms`,
      limit: '',
      ratio: null,
      goal: shape.hasGoal ? `p99 < ${String(GOAL_MS)} ms` : '',
      isMet: shape.hasGoal ? p99 < GOAL_MS : null,
      samples: { count: latenciesMs.length, p99 },
    })
  }
  return rows
}

/** Inserts copies of one real sandbox into the tables. Ids grow with time, as real ones do. */
async function fill(cloud: Cloud): Promise<void> {
  const { status, body } = await cloud.call('POST', '/v1/sandboxes', { ...createBody('bench-list'), labels: {} })
  if (status !== 200) throw new Error(`the template was refused: ${JSON.stringify(body)}`)
  const client = await connectAdmin(cloud)
  try {
    await client.query(
      `INSERT INTO sandboxes (id, org_id, name, slug, status, ephemeral, created_at, vcpus, memory_mib, abilities, spec, spec_projection, registry)
       SELECT uuidv7(), org_id, 'copy-' || n, 'copy-' || n, status, ephemeral, now(), vcpus, memory_mib, abilities, spec, spec_projection, registry
       FROM sandboxes, generate_series(1, ${String(SANDBOXES)}) n WHERE slug = $1 ORDER BY n`,
      [body['slug']],
    )
    await client.query(
      `WITH numbered AS (SELECT id, org_id, substr(name, 6)::int AS n FROM sandboxes WHERE slug LIKE 'copy-%')
       INSERT INTO sandbox_labels (org_id, key, value, sandbox_id)
       SELECT org_id, 'parity', CASE n % 2 WHEN 0 THEN 'even' ELSE 'odd' END, id FROM numbered
       UNION ALL SELECT org_id, 'other', CASE n % 2 WHEN 0 THEN 'even' ELSE 'odd' END, id FROM numbered
       UNION ALL SELECT org_id, 'rare', 'yes', id FROM numbered WHERE n % 1000 = 0`,
    )
    await client.query('VACUUM ANALYZE')
  } finally {
    await client.end()
  }
}
