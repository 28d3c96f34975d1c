import { mkdtemp, rm } from 'node:fs/promises'
import { ociUnavailableReason } from './support/oci.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import { formatNumber } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import { findParts, readProcessMemory, type Memory } from './support/process-memory.ts'
import type { ResultRow } from './support/report.ts'

/** Connections to PostgreSQL that nobody uses are closed after a minute. */
const IDLE_MS = 75_000
const GOAL_MIB = 150
const READY_GOAL_MS = 3_000

/**
 * Measures how long a start takes until the server is ready, and the memory of an idle server: its process, its worker with helper
 * processes, and its PostgreSQL.
 */
export async function benchMemory(): Promise<readonly ResultRow[]> {
  // Don't use /root: the database's user can't enter it.
  const dataDir = await mkdtemp('/tmp/sandyard-bench-memory-')
  try {
    const env = {
      SANDYARD_DATA_DIR: dataDir,
      ...(ociUnavailableReason() === null ? {} : { SANDYARD_DRIVER: 'simulated' }),
    }
    const firstFromMs = performance.now()
    await (await startCloud(env))[Symbol.asyncDispose]()
    const stoppedMs = performance.now()
    await using cloud = await startCloud(env)
    const readyMs = performance.now() - stoppedMs
    return [...startRows({ firstMs: stoppedMs - firstFromMs, readyMs }), ...(await measureMemory(cloud))]
  } finally {
    await rm(dataDir, { recursive: true, force: true })
  }
}

const TOLD = { benchmark: 'memory', limit: '', ratio: null, goal: '', isMet: null }

function startRows({ firstMs, readyMs }: { readonly firstMs: number; readonly readyMs: number }): readonly ResultRow[] {
  return [
    { ...TOLD, what: 'first start in an empty folder, and its stop', measured: `${formatNumber(firstMs)} ms` },
    {
      ...TOLD,
      what: 'start in an existing folder, until ready',
      measured: `${formatNumber(readyMs)} ms`,
      goal: '≤ 3,000 ms',
      isMet: readyMs <= READY_GOAL_MS,
    },
  ]
}

async function measureMemory(cloud: Pick<Cloud, 'pid'>): Promise<readonly ResultRow[]> {
  await pause(IDLE_MS)
  const { postgres, worker } = await findParts(cloud.pid)
  const server = await readProcessMemory(cloud.pid)
  const others = await Promise.all(postgres.map(readProcessMemory))
  const own = await Promise.all(worker.map(readProcessMemory))
  const sumOf = (parts: readonly Memory[]): number => parts.reduce((sum, { pssMib }) => sum + pssMib, 0)
  return [
    {
      ...TOLD,
      what: 'idle server: control plane',
      measured: `RSS ${formatNumber(server.rssMib)} MiB, PSS ${formatNumber(server.pssMib)} MiB`,
      samples: server,
    },
    {
      ...TOLD,
      what: `its PostgreSQL, ${String(others.length)} processes`,
      measured: `PSS ${formatNumber(sumOf(others))} MiB`,
      samples: others,
    },
    {
      ...TOLD,
      what: `its worker, ${String(own.length)} processes`,
      measured: `PSS ${formatNumber(sumOf(own))} MiB`,
      samples: own,
    },
    {
      ...TOLD,
      what: 'all of them',
      measured: `PSS ${formatNumber(sumOf([server, ...others, ...own]))} MiB`,
      goal: '≤ 150 MiB',
      isMet: sumOf([server, ...others, ...own]) <= GOAL_MIB,
    },
  ]
}
