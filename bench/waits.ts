import { spawn } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { connectAdmin } from './support/admin.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import { formatMs, median, quantile, formatNumber } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import { readProcessMemory } from './support/process-memory.ts'
import type { ResultRow } from './support/report.ts'
import { runLoad, type LoadJob } from './support/run-load.ts'
import type { WaitJob, WaitsResult } from './support/wait-job.ts'

const WAITS = 10_000
/**
 * The number of waits that are opened before the measurement. With them, and with a load of reads before, the server's
 * heap reaches its largest size.
 */
const WARM_UP = 5_000
const LOAD_MS = 8_000
/** The number of sandboxes that change one by one while the requests for all others continue to wait. */
const CHANGED = 1_000
/** The interval between changes. It is short, so that the server sends an answer while it works on other changes. */
const EVERY_MS = 20
const IDLE_MS = 10_000
/** The pause between opening the waits and measuring the server's memory. */
const SETTLE_MS = 4_000

/**
 * Opens 10,000 waits, each on its own connection and for its own sandbox. Measures the server's memory and processor
 * time, and the time from a change to the answer of its wait. That time begins at the timestamp of the change's event.
 * The timestamp is taken within the transaction, so the time includes the commit.
 */
export async function benchWaits(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({
    SANDYARD_DRIVER: 'simulated',
    SANDYARD_WAIT_CAPACITY: String(2 * WAITS),
    SANDYARD_ORG_REQUESTS_IN_FLIGHT: String(2 * WAITS),
    SANDYARD_KEY_REQUESTS_PER_SEC: '100000',
    SANDYARD_KEY_REQUEST_BURST: '1000000',
    SANDYARD_ORG_REQUESTS_PER_SEC: '100000',
    SANDYARD_ORG_REQUEST_BURST: '1000000',
  })
  const ids = await fillSandboxes(cloud, WAITS + WARM_UP)
  await runLoad(warmUpOf(cloud))
  // After the reads, because V8 frees the waits' memory during reads.
  const first = await startWaiters(cloud, ids.slice(WAITS))
  await pause(SETTLE_MS)
  const before = await readProcessMemory(cloud.pid)
  const waiters = await startWaiters(cloud, ids.slice(0, WAITS))
  await pause(SETTLE_MS)
  const cpuFromMs = await cpuMsOf(cloud.pid)
  await pause(IDLE_MS)
  const idleShare = ((await cpuMsOf(cloud.pid)) - cpuFromMs) / IDLE_MS
  const during = await readProcessMemory(cloud.pid)
  const commits = await moveSome(cloud, ids.slice(0, CHANGED))
  const restMs = await moveRest(cloud, ids.slice(CHANGED))
  const [{ arrivals, failures }] = await Promise.all([waiters.end, first.end])
  if (failures.length > 0) throw new Error(`waits failed: ${failures.join('; ')}`)
  const latencies = arrivals.flatMap(([id, atMs]) => {
    const commit = commits.get(id)
    return commit === undefined ? [] : [atMs - commit]
  })
  const p99 = quantile(latencies, 0.99)
  const each = ((during.pssMib - before.pssMib) * 1024) / WAITS
  const told = { benchmark: 'waits', limit: '', ratio: null, goal: '', isMet: null }
  return [
    {
      ...told,
      what: `from a commit to the answer of its wait, ${WAITS.toLocaleString('en-US')} open`,
      measured: `median ${formatMs(median(latencies))} ms, p99 ${formatMs(p99)} ms`,
      goal: '< 50 ms',
      isMet: p99 < 50,
      samples: latencies,
    },
    {
      ...told,
      what: 'memory of a wait in the server, its connection included (PSS)',
      measured: `${formatNumber(each)} KiB`,
      goal: '< 20 KiB',
      isMet: each < 20,
      samples: { before, during },
    },
    { ...told, what: 'processor while all wait', measured: `${formatNumber(idleShare * 100)} % of a core` },
    {
      ...told,
      what: `${String(WAITS - CHANGED)} waits ended by one statement`,
      measured: `${formatNumber(restMs / 1000)} s`,
    },
  ]
}

/** The load of reads for the warm-up. After it, the server's heap is as large as requests without waits make it. */
function warmUpOf(cloud: Cloud): LoadJob {
  return {
    host: cloud.host,
    port: cloud.port,
    connections: 64,
    warmupMs: 0,
    durationMs: LOAD_MS,
    method: 'GET',
    path: '/v1/sandboxes?limit=1',
    headers: cloud.headers,
    body: '',
    expectedStatus: 200,
  }
}

/**
 * Inserts sandboxes that were never started. Creating 12,000 of them over the API would take longer than the rest of
 * the benchmark.
 */
async function fillSandboxes(cloud: Cloud, count: number): Promise<readonly string[]> {
  const { body } = await cloud.call('POST', '/v1/sandboxes', { name: 'template', image: 'localhost/demo' })
  const client = await connectAdmin(cloud)
  try {
    const { rows } = await client.query<{ id: string }>(
      `INSERT INTO sandboxes (id, org_id, name, slug, status, ephemeral, created_at, vcpus, memory_mib, abilities, spec, spec_projection, registry)
       SELECT gen_random_uuid(), org_id, 'w' || n, 'w-' || n || '-w', 'created', false, now(), vcpus, memory_mib, abilities, spec, spec_projection, registry
       FROM sandboxes, generate_series(1, $2::integer) n WHERE id = $1 RETURNING id`,
      [body['id'], count],
    )
    await client.query('ANALYZE sandboxes')
    return rows.map(({ id }) => id)
  } finally {
    await client.end()
  }
}

/**
 * Starts sandboxes one by one over the API. Resolves with the time of each sandbox's change to `starting`, in
 * milliseconds since 1970.
 */
async function moveSome(cloud: Cloud, ids: readonly string[]): Promise<ReadonlyMap<string, number>> {
  const moving = ids.map(async (id, index) => {
    await pause(index * EVERY_MS)
    const { status, body } = await cloud.call('POST', `/v1/sandboxes/${id}/start`)
    if (status !== 200) throw new Error(`a start was refused: ${JSON.stringify(body)}`)
  })
  await Promise.all(moving)
  const client = await connectAdmin(cloud)
  try {
    const { rows } = await client.query<{ sandbox_id: string; at: Date }>(
      `SELECT sandbox_id, min(timestamp) AS at FROM events WHERE event_type = 'sandbox_starting' GROUP BY 1`,
    )
    return new Map(rows.map(({ sandbox_id, at }) => [sandbox_id, at.getTime()]))
  } finally {
    await client.end()
  }
}

/**
 * Changes all remaining sandboxes by one statement, directly in the tables, and notifies the server, so that all
 * remaining waits end. Resolves with the duration of the statement and the notification, in milliseconds.
 */
async function moveRest(cloud: Cloud, ids: readonly string[]): Promise<number> {
  const client = await connectAdmin(cloud)
  const fromMs = performance.now()
  try {
    await client.query(`UPDATE sandboxes SET status = 'starting' WHERE id = ANY($1) OR status = 'created'`, [ids])
    await client.query(`SELECT pg_notify('sandyard_wake', '*')`)
  } finally {
    await client.end()
  }
  return performance.now() - fromMs
}

type Waiters = { readonly end: Promise<WaitsResult> }

/** Starts the waiters in a process of their own. Resolves when all requests are sent. */
async function startWaiters(cloud: Cloud, ids: readonly string[]): Promise<Waiters> {
  const program = join(import.meta.dirname, 'support/waiters.ts')
  // Node raises its own soft limit of open files to the hard limit.
  const child = spawn(process.execPath, [program], { stdio: ['pipe', 'pipe', 'inherit'] })
  process.once('exit', () => child.kill('SIGKILL'))
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const job: WaitJob = {
    host: cloud.host,
    port: cloud.port,
    authorization: cloud.headers['authorization'] ?? '',
    ids,
    status: 'starting,running',
  }
  child.stdin.write(`${JSON.stringify(job)}\n`)
  const asked = await lines.next()
  if (asked.value !== 'asked') throw new Error(`the waiters ended: ${String(asked.value)}`)
  return { end: lines.next().then(({ value }) => JSON.parse(value ?? '') as WaitsResult) } // waiters.ts wrote it
}

/** Reads the processor time of a process in milliseconds (proc(5), `stat`: fields 14 and 15, in hundredths of a second). */
async function cpuMsOf(pid: number): Promise<number> {
  const stat = await readFile(`/proc/${String(pid)}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * 10
}
