import { startCloud } from './support/cloud.ts'
import { formatNumber, median } from './support/numbers.ts'
import { readCpuSeconds } from './support/process-cpu.ts'
import { findDescendants } from './support/process-memory.ts'
import type { ResultRow } from './support/report.ts'
import { runLoad, type LoadJob } from './support/run-load.ts'
import { createBody } from './support/spec.ts'

const ROUNDS = 3
/**
 * For each process. With 64 in all, two processes committed 13 creates at once instead of 27, and a create cost 500 us instead of 350. One
 * process needs no more of them: with 128, a create cost it as much as with 64 (2026-11).
 */
const CONNECTIONS_EACH = 64
const PROCESSES = 2
const GOAL = 1.6

/** The processor time of each request, in microseconds. */
type Cost = { readonly get: number; readonly create: number }

/**
 * What two server processes on two cores serve against one on one core. It is computed from the processor time that a request takes of all
 * processes of the server and of PostgreSQL: the load generator would use the cores too.
 */
export async function benchProcesses(): Promise<readonly ResultRow[]> {
  const one: Cost[] = []
  const several: Cost[] = []
  for (let round = 0; round < ROUNDS; round++) {
    one.push(await costOf(1))
    several.push(await costOf(PROCESSES))
  }
  return (['get', 'create'] as const).map((what) => {
    const [alone, shared] = [one, several].map((costs) => median(costs.map((cost) => cost[what])))
    const ratio = (PROCESSES * (alone ?? NaN)) / (shared ?? NaN)
    return {
      benchmark: 'processes',
      what: `${what}: two processes on two cores, by processor time`,
      limit: `one on one core: ${formatNumber(alone ?? NaN)} µs a request`,
      measured: `${formatNumber(shared ?? NaN)} µs a request`,
      ratio,
      goal: `≥ ${String(GOAL)}`,
      isMet: ratio >= GOAL,
      samples: { one, several },
    }
  })
}

async function costOf(processes: number): Promise<Cost> {
  await using cloud = await startCloud({ SANDYARD_DRIVER: 'simulated', SANDYARD_PROCESSES: String(processes) })
  const { status, body } = await cloud.call('POST', '/v1/sandboxes', createBody('bench-processes'))
  if (status !== 200) throw new Error(`the sandbox was refused: ${JSON.stringify(body)}`)
  const common = {
    host: cloud.host,
    port: cloud.port,
    connections: CONNECTIONS_EACH * processes,
    warmupMs: 0,
    durationMs: 3_000,
    headers: cloud.headers,
  }
  const path = `/v1/sandboxes/${String(body['id'])}`
  const get: LoadJob = { ...common, method: 'GET', path, body: '', expectedStatus: 200 }
  const create = (name: string): LoadJob => {
    const created = JSON.stringify(createBody(`${name}-{{n}}`))
    return { ...common, method: 'POST', path: '/v1/sandboxes', body: created, expectedStatus: 200 }
  }
  await runLoad(get) // compiles what the requests use, and opens all connections to PostgreSQL, each of which is a process
  await runLoad(create('warm-up'))
  const pids = [cloud.pid, ...(await findDescendants(cloud.pid))]
  const cost = async (job: LoadJob): Promise<number> => {
    const before = await readCpuSeconds(pids)
    const { latenciesMs } = await runLoad(job)
    return (((await readCpuSeconds(pids)) - before) * 1e6) / latenciesMs.length
  }
  return { get: await cost(get), create: await cost(create('measured')) }
}
