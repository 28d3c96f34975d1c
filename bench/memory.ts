import { ociUnavailableReason } from './support/oci.ts'
import { startCloud } from './support/cloud.ts'
import { formatNumber } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import { findParts, readProcessMemory, type Memory } from './support/process-memory.ts'
import type { ResultRow } from './support/report.ts'

/** Connections to PostgreSQL that nobody uses are closed after a minute. */
const IDLE_MS = 75_000
const GOAL_MIB = 150

/** Measures the memory of an idle server: its process, its worker with helper processes, and its PostgreSQL. */
export async function benchMemory(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud(ociUnavailableReason() === null ? {} : { SANDYARD_DRIVER: 'simulated' })
  await pause(IDLE_MS)
  const { postgres, worker } = await findParts(cloud.pid)
  const server = await readProcessMemory(cloud.pid)
  const others = await Promise.all(postgres.map(readProcessMemory))
  const own = await Promise.all(worker.map(readProcessMemory))
  const told = { benchmark: 'memory', limit: '', ratio: null, goal: '', isMet: null }
  const sumOf = (parts: readonly Memory[]): number => parts.reduce((sum, { pssMib }) => sum + pssMib, 0)
  return [
    {
      ...told,
      what: 'idle server: control plane',
      measured: `RSS ${formatNumber(server.rssMib)} MiB, PSS ${formatNumber(server.pssMib)} MiB`,
      samples: server,
    },
    {
      ...told,
      what: `its PostgreSQL, ${String(others.length)} processes`,
      measured: `PSS ${formatNumber(sumOf(others))} MiB`,
      samples: others,
    },
    {
      ...told,
      what: `its worker, ${String(own.length)} processes`,
      measured: `PSS ${formatNumber(sumOf(own))} MiB`,
      samples: own,
    },
    {
      ...told,
      what: 'all of them',
      measured: `PSS ${formatNumber(sumOf([server, ...others, ...own]))} MiB`,
      goal: '≤ 150 MiB',
      isMet: sumOf([server, ...others, ...own]) <= GOAL_MIB,
    },
  ]
}
