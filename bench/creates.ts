import { connectAdmin } from './support/admin.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import { median, formatRate } from './support/numbers.ts'
import { pgbenchPath, runPgbench } from './support/pgbench.ts'
import type { ResultRow } from './support/report.ts'
import { repliesPerSecond, runLoad, type LoadJob } from './support/run-load.ts'
import { createBody } from './support/spec.ts'

const ROUNDS = 3
const SECONDS = 4
/**
 * The numbers of concurrent clients to measure; the better result counts. The throughput depends on the batches that
 * concurrent creates form, and is highest between these two numbers.
 */
const CONNECTIONS: readonly number[] = [64, 128]
/** The goal for creates per second, as a ratio to pgbench's commits per second. */
const GOAL = 1.5
/**
 * The numbers of pgbench's clients to measure; the better result counts. On two cores, pgbench's throughput is highest
 * between these two numbers.
 */
const CLIENTS: readonly number[] = [8, 64]

/**
 * Measures creates per second over HTTP. Each create is durable before its reply. The limit is pgbench, which commits
 * the same rows to the same tables, one transaction each. pgbench does less: one prepared statement, no row-level
 * security, no validation.
 */
export async function benchCreates(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({ SANDYARD_DRIVER: 'simulated' })
  const commit = await makeCommit(cloud)
  const rounds: { ours: number; connections: number; medianMs: number; limit: number; clients: number }[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const limits: { rate: number; clients: number }[] = []
    for (const clients of commit === null ? [] : CLIENTS) limits.push({ rate: (await commit?.(clients)) ?? 0, clients })
    const best = limits.toSorted((one, other) => other.rate - one.rate)[0]
    const loads: { ours: number; connections: number; medianMs: number }[] = []
    for (const connections of CONNECTIONS) {
      const job = jobOf(cloud, `${String(round)}-${String(connections)}`, connections)
      const result = await runLoad(job)
      loads.push({ ours: repliesPerSecond(job, result), connections, medianMs: median(result.latenciesMs) })
    }
    const ofUs = loads.toSorted((one, other) => other.ours - one.ours)[0]
    if (ofUs === undefined) throw new Error('no number of connections is measured')
    rounds.push({ ...ofUs, limit: best?.rate ?? NaN, clients: best?.clients ?? 0 })
  }
  const ours = median(rounds.map((round) => round.ours))
  const limit = median(rounds.map((round) => round.limit))
  const ratio = median(rounds.map((round) => round.ours / round.limit))
  const hasLimit = Number.isFinite(ratio)
  return [
    {
      benchmark: 'creates',
      what: `durable creates, the better of ${CONNECTIONS.join(' and ')} connections`,
      measured: formatRate(ours),
      limit: hasLimit ? `pgbench ${formatRate(limit)}` : 'no pgbench here',
      ratio: hasLimit ? ratio : null,
      goal: `>= ${String(GOAL)}`,
      isMet: hasLimit ? ratio >= GOAL : null,
      samples: rounds,
    },
  ]
}

function jobOf(cloud: Cloud, round: string, connections: number): LoadJob {
  return {
    host: cloud.host,
    port: cloud.port,
    connections,
    warmupMs: 1_000,
    durationMs: SECONDS * 1000,
    method: 'POST',
    path: '/v1/sandboxes',
    headers: cloud.headers,
    body: JSON.stringify(createBody(`bench-${round}-{{n}}`)),
    expectedStatus: 200,
  }
}

/**
 * Creates one sandbox over the API and copies its rows into a script for pgbench. Resolves with a function that runs
 * the script with a number of clients and measures commits per second, or with null if pgbench is missing.
 */
async function makeCommit(cloud: Cloud): Promise<((clients: number) => Promise<number>) | null> {
  const { status, body } = await cloud.call('POST', '/v1/sandboxes', createBody('bench-template'))
  if (status !== 200) throw new Error(`the template was refused: ${JSON.stringify(body)}`)
  if (pgbenchPath() === null) return null
  const env = await cloud.adminEnv()
  const variables = await readTemplate(cloud)
  return (clients) => runPgbench({ env, script: COMMIT, variables, clients, seconds: SECONDS })
}

async function readTemplate(cloud: Cloud): Promise<Readonly<Record<string, string>>> {
  const client = await connectAdmin(cloud)
  try {
    const { rows } = await client.query<Record<string, string>>(
      `SELECT s.org_id, s.abilities::text, s.spec::text, s.spec_projection::text AS projection, s.registry::text,
              e.actor::text, e.payload::text
       FROM sandboxes s JOIN events e ON e.sandbox_id = s.id`,
    )
    if (rows[0] === undefined) throw new Error('the template has no row')
    return rows[0]
  } finally {
    await client.end()
  }
}

/** The rows of one create: sandbox, label and event. The text of a UUID serves as name and slug. */
const COMMIT = `WITH s AS (
  INSERT INTO sandboxes (id, org_id, name, slug, status, ephemeral, created_at, vcpus, memory_mib, abilities, spec, spec_projection, registry)
  SELECT id, :org_id::uuid, id::text, id::text, 'created', false, now(), 1, 512, :abilities::text[], :spec::json, :projection::json, :registry::json
  FROM (SELECT uuidv7() AS id) i RETURNING id, org_id),
l AS (INSERT INTO sandbox_labels (org_id, key, value, sandbox_id) SELECT org_id, 'purpose', 'benchmark', id FROM s)
INSERT INTO events (id, org_id, timestamp, category, event_type, sandbox_id, actor, payload)
SELECT uuidv7(), org_id, now(), 'sandbox', 'sandbox_created', id, :actor::json, :payload::json FROM s;
`
