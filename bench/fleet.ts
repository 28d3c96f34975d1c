import { spawn, type ChildProcess } from 'node:child_process'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Client } from 'pg'
import { connectAdmin } from './support/admin.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import {
  countRuns,
  endRuns,
  fillPending,
  fillWorkers,
  runPlaced,
  withRuns,
  type PlayedWorker,
} from './support/fleet-tables.ts'
import { formatRate, formatNumber } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import { readCpuSeconds } from './support/process-cpu.ts'
import { findDescendants } from './support/process-memory.ts'
import type { ResultRow } from './support/report.ts'
import { createBody } from './support/spec.ts'

const WORKERS = Number(process.env['FLEET_WORKERS'] ?? 10_000)
const RUNS = Number(process.env['FLEET_RUNS'] ?? 100_000)
/**
 * The number of runs to place while `RUNS` runs are open. If fewer runs were placed, the placement loop's period of one
 * second would distort the result.
 */
const MORE_RUNS = RUNS / 2
const PLACED_LIMIT_MS = 300_000
const STEADY_GOAL_CORES = 0.4
/**
 * How long the workers take to connect one after another, and how long to wait after that until no worker reports
 * anything new.
 */
const RAMP_MS = Number(process.env['FLEET_RAMP_MS'] ?? 60_000)
const SETTLE_MS = Number(process.env['FLEET_SETTLE_MS'] ?? 45_000)
const STEADY_MS = Number(process.env['FLEET_STEADY_MS'] ?? 40_000)

/**
 * Inserts a fleet of workers and runs into the tables of a real server. Measures how fast the server places runs, from
 * the commit of the runs to the commit of the last placement. Also measures the resources that the server and its
 * PostgreSQL use while all workers sync and nothing changes. A separate process simulates the workers.
 */
export async function benchFleet(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({ SANDYARD_DRIVER: 'simulated' })
  const client = await connectAdmin(cloud)
  try {
    const { status, body } = await cloud.call('POST', '/v1/sandboxes', createBody('bench-template'))
    if (status !== 200) throw new Error(`the template was refused: ${JSON.stringify(body)}`)
    const workers = await fillWorkers(client, WORKERS)
    await client.query('VACUUM ANALYZE')
    const first = await measurePlacement(client, 'fleet-', RUNS)
    const second = await measurePlacement(client, 'more-', MORE_RUNS)
    await endRuns(client, 'more-')
    await runPlaced(client)
    await client.query('VACUUM ANALYZE')
    const steady = await measureSteady(cloud, client, await withRuns(client, workers))
    return [...placementRows(first, second), ...steadyRows(steady)]
  } finally {
    await client.end()
  }
}

type Placed = { readonly rate: number; readonly openBefore: number; readonly count: number }

/** Measures placed runs per second, from the commit of the runs to the commit that places the last of them. */
async function measurePlacement(client: Client, prefix: string, count: number): Promise<Placed> {
  const before = await countRuns(client)
  await fillPending(client, prefix, count)
  const fromMs = performance.now()
  for (;;) {
    await pause(250)
    const { open, placed } = await countRuns(client)
    const elapsedMs = performance.now() - fromMs
    if (placed === open) return { rate: (count / elapsedMs) * 1_000, openBefore: before.open, count }
    if (elapsedMs > PLACED_LIMIT_MS)
      throw new Error(`${String(open - placed)} of ${String(open)} runs have no place after ${String(elapsedMs)} ms`)
  }
}

function placementRows(...measured: readonly Placed[]): readonly ResultRow[] {
  return measured.map(({ rate, openBefore, count }) => ({
    benchmark: 'fleet',
    what: `placement of ${String(count)} runs on ${String(WORKERS)} workers with ${String(openBefore)} open runs`,
    measured: formatRate(rate),
    limit: '',
    ratio: null,
    goal: '>= 5,000 /s',
    isMet: rate >= 5_000,
  }))
}

type Steady = {
  readonly serverCores: number
  readonly postgresCores: number
  readonly playerCores: number
  readonly syncsPerSecond: number
  readonly failed: number
  readonly slowestHeadMs: number
  readonly rampSlowestHeadMs: number
  readonly leased: number
}

async function measureSteady(cloud: Cloud, client: Client, workers: readonly PlayedWorker[]): Promise<Steady> {
  const player = startPlayer(cloud, workers)
  try {
    await pause(RAMP_MS + SETTLE_MS)
    const rampSlowestHeadMs = player.takeSlowestHeadMs()
    const at = await usageOf(cloud, player.child)
    const from = player.told()
    await pause(STEADY_MS)
    const then = await usageOf(cloud, player.child)
    const to = player.told()
    const seconds = (then.atMs - at.atMs) / 1_000
    const { rows } = await client.query<{ leased: string }>(
      `SELECT count(*) AS leased FROM workers WHERE name LIKE 'bench-%' AND lease_expires_at BETWEEN now() AND now() + interval '31 s'`,
    )
    return {
      serverCores: (then.server - at.server) / seconds,
      postgresCores: (then.postgres - at.postgres) / seconds,
      playerCores: (then.player - at.player) / seconds,
      syncsPerSecond: (to.syncs - from.syncs) / seconds,
      failed: to.failed - from.failed,
      slowestHeadMs: player.takeSlowestHeadMs(),
      rampSlowestHeadMs,
      leased: Number(rows[0]?.leased),
    }
  } finally {
    player.child.kill('SIGKILL')
  }
}

type Told = {
  readonly syncs: number
  readonly wanted: number
  readonly failed: number
  readonly connected: number
  readonly slowestHeadMs: number
}

function startPlayer(cloud: Cloud, workers: readonly PlayedWorker[]) {
  const args = [cloud.host, String(cloud.port), String(workers.length), String(RAMP_MS)]
  const child = spawn(process.execPath, [join(import.meta.dirname, 'support/fleet-player.ts'), ...args], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  process.once('exit', () => child.kill('SIGKILL'))
  child.stdin.end(workers.map((worker) => JSON.stringify(worker)).join('\n'))
  let told: Told = { syncs: 0, wanted: 0, failed: 0, connected: 0, slowestHeadMs: 0 }
  let slowestHeadMs = 0
  createInterface({ input: child.stdout }).on('line', (line) => {
    told = JSON.parse(line)
    slowestHeadMs = Math.max(slowestHeadMs, told.slowestHeadMs)
    if (process.env['FLEET_VERBOSE'] !== undefined) process.stderr.write(`${line}\n`)
  })
  return {
    child,
    told: () => told,
    takeSlowestHeadMs: () => {
      const taken = slowestHeadMs
      slowestHeadMs = 0
      return taken
    },
  }
}

async function usageOf(cloud: Cloud, player: ChildProcess) {
  const postgres = await findDescendants(cloud.pid)
  return {
    atMs: performance.now(),
    server: await readCpuSeconds([cloud.pid]),
    postgres: await readCpuSeconds(postgres),
    player: await readCpuSeconds([player.pid ?? 0]),
  }
}

function steadyRows(steady: Steady): readonly ResultRow[] {
  const { serverCores, postgresCores, syncsPerSecond, failed, leased } = steady
  const cores = serverCores + postgresCores
  const isWhole = failed === 0 && leased === WORKERS
  return [
    {
      benchmark: 'fleet',
      what: `steady load of ${String(WORKERS)} workers with ${String(RUNS)} runs, ${formatRate(syncsPerSecond)} syncs${isWhole ? '' : ` (${String(failed)} failed, ${String(leased)} leases hold)`}`,
      measured: `${formatNumber(cores)} cores: server ${formatNumber(serverCores)}, PostgreSQL ${formatNumber(postgresCores)}`,
      limit: '',
      ratio: null,
      goal: `< ${String(STEADY_GOAL_CORES)} cores`,
      value: cores,
      isMet: isWhole && cores < STEADY_GOAL_CORES,
      samples: steady,
    },
  ]
}
