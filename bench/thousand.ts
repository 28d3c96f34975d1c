import { readFile, readdir } from 'node:fs/promises'
import { totalmem } from 'node:os'
import { join } from 'node:path'
import { waitForDemoImage } from './start.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import { formatNumber, formatSpreadMs, median } from './support/numbers.ts'
import { ociUnavailableReason } from './support/oci.ts'
import { pause } from './support/pause.ts'
import { readCpuSeconds } from './support/process-cpu.ts'
import { findParts } from './support/process-memory.ts'
import type { ResultRow } from './support/report.ts'
import { fetchBytes, sampleLatenciesMs } from './support/sample.ts'
import { loadClient } from './support/sdk.ts'

const FEW = 10
const MANY = 1_000
const MEMORY_MIB = 16
/** What the machine needs: the memory of all sandboxes, and as much for the rest. */
const NEEDED_GIB = 20
const AT_ONCE = 8
const START_LIMIT_MS = 300_000
/** How long after the last start nothing is measured, because disks and records are still written. */
const SETTLE_MS = 20_000
const IDLE_MS = 30_000
const IDLE_GOAL_CORES = 0.05
const SAMPLES = 40
/** How many times as long as among ten a list and a command may take among a thousand. */
const GOAL = 1.25

/**
 * Runs a thousand real sandboxes at once: the processor time of all of Sandyard's processes while nothing happens, and a list and a
 * command beside ten and beside a thousand. Needs root, 20 GiB of memory and some eight minutes. Deletes its sandboxes.
 */
export async function benchThousand(): Promise<readonly ResultRow[]> {
  const reason = unavailableReason()
  if (reason !== null) throw new Error(reason)
  await using cloud = await startCloud({ SANDYARD_VCPU_OVERCOMMIT: '1000', SANDYARD_WARM: '0' })
  await waitForDemoImage(cloud)
  const ids: string[] = []
  try {
    await startAll(cloud, FEW, ids)
    await pause(SETTLE_MS)
    const idleFew = await idleCores(cloud)
    const few = await measureRequests(cloud)
    const before = await availableMib()
    const fromMs = performance.now()
    await startAll(cloud, MANY, ids)
    const startSeconds = (performance.now() - fromMs) / 1000
    await pause(SETTLE_MS)
    const count = ids.length
    const mibEach = (before - (await availableMib())) / (count - FEW)
    const idleMany = await idleCores(cloud)
    const many = await measureRequests(cloud)
    return rowsOf({ count, startSeconds, mibEach, idleFew, idleMany, few, many })
  } finally {
    await deleteAll(cloud, ids)
  }
}

function unavailableReason(): string | null {
  const oci = ociUnavailableReason()
  if (oci !== null) return `no real sandbox can be started here: ${oci}`
  const gib = totalmem() / 1024 ** 3
  return gib < NEEDED_GIB ? `needs ${String(NEEDED_GIB)} GiB of memory, and there are ${gib.toFixed(0)}` : null
}

/** Starts sandboxes until `count` run or until the time limit, and adds the ids of all that it made. Rejects if a start fails. */
async function startAll(cloud: Cloud, count: number, ids: string[]): Promise<void> {
  const deadlineMs = performance.now() + START_LIMIT_MS
  let next = ids.length
  let isFailed = false
  const one = async (): Promise<void> => {
    while (next < count && !isFailed && performance.now() < deadlineMs) {
      const { body } = await cloud.call('POST', '/v1/sandboxes?start=true&wait_for=running&wait_timeout=60', {
        name: nameOf(next++),
        image: { type: 'oci', reference: 'localhost/demo' },
        resources: { vcpus: 1, memory_mib: MEMORY_MIB },
      })
      if (typeof body['id'] === 'string') ids.push(body['id'])
      if (body['status'] === 'running') continue
      isFailed = true
      throw new Error(`start ${String(ids.length)} failed: ${JSON.stringify(body)}`)
    }
  }
  // All of them must have ended before anything is deleted.
  const ended = await Promise.allSettled(Array.from({ length: AT_ONCE }, one))
  for (const result of ended) if (result.status === 'rejected') throw result.reason
}

const nameOf = (n: number): string => `bench-thousand-${String(n)}`

/** Deletes sandboxes. Rejects if the worker still has files of them after the time limit. */
async function deleteAll(cloud: Cloud, ids: readonly string[]): Promise<void> {
  const left = [...ids]
  const one = async (): Promise<void> => {
    for (let id = left.pop(); id !== undefined; id = left.pop()) await cloud.call('DELETE', `/v1/sandboxes/${id}`)
  }
  await Promise.all(Array.from({ length: AT_ONCE }, one))
  const runs = join(cloud.dataDir, 'sandboxes', 'runs')
  const deadlineMs = performance.now() + START_LIMIT_MS
  for (;;) {
    const { length } = await readdir(runs)
    if (length === 0) return
    if (performance.now() > deadlineMs)
      throw new Error(`${String(length)} deleted sandboxes still have files in ${runs}`)
    await pause(500)
  }
}

type Latencies = { readonly list: readonly number[]; readonly exec: readonly number[] }

/** The latencies of a page of 20 and of a command by the public client, one at a time. */
async function measureRequests(cloud: Cloud): Promise<Latencies> {
  const { Sandbox } = await loadClient(cloud)
  const box = await (await Sandbox.get(nameOf(0))).connect()
  return {
    list: await sampleLatenciesMs(SAMPLES, () => fetchBytes(cloud, '/v1/sandboxes?limit=20')),
    exec: await sampleLatenciesMs(SAMPLES, () => box.exec('true')),
  }
}

type Cores = { readonly server: number; readonly postgres: number; readonly worker: number; readonly sandboxes: number }

/** The cores that server, PostgreSQL, the worker with its helpers, and the sandboxes with their shims use. */
async function idleCores(cloud: Cloud): Promise<Cores> {
  const { postgres, worker } = await findParts(cloud.pid)
  const ours = new Set([cloud.pid, ...postgres, ...worker])
  const sandboxes = (await findSandboxProcesses()).filter((pid) => !ours.has(pid))
  const read = () => Promise.all([[cloud.pid], postgres, worker, sandboxes].map(readCpuSeconds))
  const [before, fromMs] = [await read(), performance.now()]
  await pause(IDLE_MS)
  const after = await read()
  const seconds = (performance.now() - fromMs) / 1000
  const cores = (at: number): number => ((after[at] ?? NaN) - (before[at] ?? NaN)) / seconds
  return { server: cores(0), postgres: cores(1), worker: cores(2), sandboxes: cores(3) }
}

/** The processes in cgroups of sandboxes of this machine. */
async function findSandboxProcesses(): Promise<readonly number[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name))
  const found = await Promise.all(
    pids.map(async (pid) => {
      const cgroups = await readFile(`/proc/${pid}/cgroup`, 'utf8').catch(() => '')
      return cgroups.includes('/sandyard/') ? [Number(pid)] : []
    }),
  )
  return found.flat()
}

async function availableMib(): Promise<number> {
  return Number(/^MemAvailable: +(\d+) kB/m.exec(await readFile('/proc/meminfo', 'utf8'))?.[1] ?? NaN) / 1024
}

type Measured = {
  readonly count: number
  readonly startSeconds: number
  readonly mibEach: number
  readonly idleFew: Cores
  readonly idleMany: Cores
  readonly few: Latencies
  readonly many: Latencies
}

const totalOf = ({ server, postgres, worker, sandboxes }: Cores): number => server + postgres + worker + sandboxes
const describe = (cores: Cores): string =>
  `${(totalOf(cores) * 100).toFixed(1)} % of a core: server ${(cores.server * 100).toFixed(1)}, PostgreSQL ${(cores.postgres * 100).toFixed(1)}, worker ${(cores.worker * 100).toFixed(1)}, sandboxes ${(cores.sandboxes * 100).toFixed(1)}`

function rowsOf({ count, startSeconds, mibEach, idleFew, idleMany, few, many }: Measured): readonly ResultRow[] {
  const benchmark = 'thousand'
  const what = `${MANY.toLocaleString('en-US')} sandboxes at once`
  const latencyRow = (name: string, of: keyof Latencies): ResultRow => ({
    benchmark,
    what: `${what}: ${name} (min / median / p95)`,
    measured: formatSpreadMs(many[of]),
    limit: `among ${String(FEW)}: ${formatSpreadMs(few[of])}`,
    ratio: median(many[of]) / median(few[of]),
    goal: `<= ${String(GOAL)}`,
    isMet: median(many[of]) <= GOAL * median(few[of]),
    samples: { few: few[of], many: many[of] },
  })
  return [
    {
      benchmark,
      what: `${what}: idle`,
      measured: describe(idleMany),
      limit: `${String(FEW)}: ${describe(idleFew)}`,
      ratio: null,
      value: totalOf(idleMany),
      goal: `< ${String(IDLE_GOAL_CORES * 100)} % of a core`,
      isMet: totalOf(idleMany) < IDLE_GOAL_CORES,
    },
    latencyRow('a page of 20', 'list'),
    latencyRow("`true` by the public client's `exec`", 'exec'),
    {
      benchmark,
      what: `${what}: how many run, started ${String(AT_ONCE)} at a time, and the memory of each`,
      measured: `${String(count)} after ${startSeconds.toFixed(0)} s, ${formatNumber((count - FEW) / startSeconds)} /s; ${formatNumber(mibEach)} MiB each`,
      limit: '',
      ratio: null,
      value: count,
      goal: `${String(MANY)} within ${String(START_LIMIT_MS / 1000)} s`,
      isMet: count >= MANY,
    },
  ]
}
