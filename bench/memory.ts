import { ociUnavailableReason } from './support/oci.ts'
import { startCloud } from './support/cloud.ts'
import { formatNumber } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import { findDescendants, readProcessMemory } from './support/process-memory.ts'
import type { ResultRow } from './support/report.ts'

const IDLE_MS = 10_000

/** Measures the memory of an idle server: its process, with control plane and worker, and its PostgreSQL. */
export async function benchMemory(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud(ociUnavailableReason() === null ? {} : { SANDYARD_DRIVER: 'simulated' })
  await pause(IDLE_MS)
  const server = await readProcessMemory(cloud.pid)
  const others = await Promise.all((await findDescendants(cloud.pid)).map(readProcessMemory))
  const told = { benchmark: 'memory', limit: '', ratio: null, goal: '', isMet: null }
  const pss = others.reduce((sum, { pssMib }) => sum + pssMib, 0)
  return [
    {
      ...told,
      what: 'idle server: control plane and worker',
      measured: `RSS ${formatNumber(server.rssMib)} MiB, PSS ${formatNumber(server.pssMib)} MiB`,
      samples: server,
    },
    {
      ...told,
      what: `its PostgreSQL, ${String(others.length)} processes`,
      measured: `PSS ${formatNumber(pss)} MiB`,
      samples: others,
    },
  ]
}
