import { mkdtemp, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { startCloud, type Cloud } from './support/cloud.ts'
import { cloneCheckout, describeNpmCache } from './support/fresh-clone.ts'
import { formatNumber } from './support/numbers.ts'
import { ociUnavailableReason } from './support/oci.ts'
import { pause } from './support/pause.ts'
import { findParts, readProcessMemory, type Memory } from './support/process-memory.ts'
import type { ResultRow } from './support/report.ts'

/** Connections to PostgreSQL that nobody uses are closed after 20 s. */
const IDLE_MS = 75_000
const MEMORY_GOAL_MIB = 150
const CLONE_GOAL_MS = 30_000
const READY_GOAL_MS = 3_000

/**
 * Measures a fresh clone of this commit as its user sees it: how long the first start takes, and a later one, until the server is ready,
 * and the memory of the idle server by its parts. The clone has Node and PostgreSQL of its own, so no other process of the machine
 * shares their pages, which PSS would divide.
 */
export async function benchMemory(): Promise<readonly ResultRow[]> {
  // Don't use /root: the database's user can't enter it.
  const folder = await mkdtemp('/tmp/sandyard-bench-memory-')
  try {
    const env = {
      SANDYARD_DATA_DIR: join(folder, 'data'),
      ...(ociUnavailableReason() === null ? {} : { SANDYARD_DRIVER: 'simulated' }),
    }
    const cache = await describeNpmCache()
    const clonedFromMs = performance.now()
    const program = await cloneCheckout(join(folder, 'clone'))
    const first = await startCloud(env, program)
    const cloneMs = performance.now() - clonedFromMs
    await first[Symbol.asyncDispose]()
    const startedFromMs = performance.now()
    await using cloud = await startCloud(env, program)
    const readyMs = performance.now() - startedFromMs
    return [...startRows({ cloneMs, readyMs, cache }), ...(await measureMemory(cloud))]
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

const TOLD = { benchmark: 'memory', limit: '', ratio: null, goal: '', isMet: null }

type Starts = { readonly cloneMs: number; readonly readyMs: number; readonly cache: string }

function startRows({ cloneMs, readyMs, cache }: Starts): readonly ResultRow[] {
  return [
    {
      ...TOLD,
      what: 'fresh clone: `git clone` and the first start, until ready',
      measured: `${formatNumber(cloneMs / 1000)} s, with ${cache}`,
      value: cloneMs / 1000,
      goal: '<= 30 s',
      isMet: cloneMs <= CLONE_GOAL_MS,
    },
    {
      ...TOLD,
      what: 'start in an existing data folder, until ready',
      measured: `${formatNumber(readyMs / 1000)} s`,
      value: readyMs / 1000,
      goal: '<= 3 s',
      isMet: readyMs <= READY_GOAL_MS,
    },
  ]
}

async function measureMemory(cloud: Pick<Cloud, 'pid'>): Promise<readonly ResultRow[]> {
  await pause(IDLE_MS)
  const { postgres, worker, helpers } = await findParts(cloud.pid)
  const parts: readonly (readonly [what: string, pids: readonly number[]])[] = [
    ['idle: control plane', [cloud.pid]],
    ['idle: worker', worker],
    ['idle: helper processes of the worker, in Perl', helpers],
    ['idle: PostgreSQL', postgres],
  ]
  const measured = await Promise.all(
    parts.map(async ([what, pids]) => ({ what, memory: await Promise.all(pids.map(readProcessMemory)) })),
  )
  const all = measured.flatMap(({ memory }) => memory)
  return [
    ...measured.map(({ what, memory }) => ({ ...TOLD, what, ...figures(memory) })),
    {
      ...TOLD,
      what: 'idle: all of them',
      ...figures(all),
      goal: `<= ${String(MEMORY_GOAL_MIB)} MiB`,
      isMet: sumOf(all, 'pssMib') <= MEMORY_GOAL_MIB,
    },
  ]
}

function figures(memory: readonly Memory[]): Pick<ResultRow, 'measured' | 'value' | 'samples'> {
  const pss = sumOf(memory, 'pssMib')
  const own = formatNumber(sumOf(memory, 'anonymousMib'))
  const processes = memory.length === 1 ? '' : `, ${String(memory.length)} processes`
  return { measured: `PSS ${formatNumber(pss)} MiB, anonymous ${own}${processes}`, value: pss, samples: memory }
}

function sumOf(memory: readonly Memory[], name: keyof Memory): number {
  return memory.reduce((sum, one) => sum + one[name], 0)
}
