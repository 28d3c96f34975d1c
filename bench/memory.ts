import { whyNoOci } from './support/oci.ts'
import { startCloud } from './support/cloud.ts'
import { short } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import { descendantsOf, memoryOf } from './support/process-memory.ts'
import type { Row } from './support/report.ts'

const IDLE_MS = 10_000

/** The memory of a server that has nothing to do: its process (control plane and worker) and its PostgreSQL. */
export async function benchMemory(): Promise<readonly Row[]> {
  await using cloud = await startCloud(whyNoOci() === null ? {} : { SANDYARD_DRIVER: 'simulated' })
  await pause(IDLE_MS)
  const server = await memoryOf(cloud.pid)
  const others = await Promise.all((await descendantsOf(cloud.pid)).map(memoryOf))
  const told = { benchmark: 'memory', limit: '', ratio: null, goal: '', isMet: null }
  const pss = others.reduce((sum, { pssMib }) => sum + pssMib, 0)
  return [
    {
      ...told,
      what: 'idle server: control plane and worker',
      measured: `RSS ${short(server.rssMib)} MiB, PSS ${short(server.pssMib)} MiB`,
      samples: server,
    },
    {
      ...told,
      what: `its PostgreSQL, ${String(others.length)} processes`,
      measured: `PSS ${short(pss)} MiB`,
      samples: others,
    },
  ]
}
