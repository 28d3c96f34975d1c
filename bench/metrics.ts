import { existsSync, readdirSync } from 'node:fs'
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { asId, type OrgId, type RunId, type SandboxId } from '../src/domain/ids.ts'
import { systemClock } from '../src/lib/clock.ts'
import { makeLog } from '../src/lib/log.ts'
import { openCgroupMeter } from '../src/worker/drivers/oci/cgroups/cgroup-meter.ts'
import type { Meter } from '../src/worker/metrics/meter.ts'
import { openSandboxMetrics, type SandboxMetrics } from '../src/worker/metrics/sandbox-metrics.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import { formatNumber, median } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import type { ResultRow } from './support/report.ts'
import { startSandbox } from './support/sandbox.ts'

const REAL = 100
const SIMULATED = 1_000
/** Phases with and without samples alternate, so that other work of this process falls on both alike. */
const ROUNDS = 3
const IDLE_PHASE_MS = 4_000
/** Points are written to their file ten at a time, so a phase has each sandbox's writes once. */
const SAMPLING_PHASE_MS = 10_000
const INTERVAL_MS = 1_000
/** How often the sampler reads the rest of an idle sandbox's counters: too seldom for a phase. */
const REST_SECONDS = 60
/** The share of a core for each 100 sandboxes that are sampled each second. */
const GOAL_PERCENT = 0.2

/**
 * What it costs to sample and keep the use of sandboxes each second: the processor time of a process that does nothing else, with
 * the worker's own sampler on the cgroups of 100 real sandboxes, and with meters that read nothing for 1,000.
 */
export async function benchMetrics(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({ SANDYARD_VCPU_OVERCOMMIT: '100', SANDYARD_WARM: '0' })
  for (let index = 0; index < REAL; index++) await startSandbox(cloud, `bench-metrics-${String(index)}`, 64)
  const real = await metersOf(cloud)
  const idle = Array.from({ length: SIMULATED }, (): (() => Meter) => () => IDLE_METER)
  return [await measure(cloud, 'real', real), await measure(cloud, 'simulated', idle), await measureLatency(cloud)]
}

const IDLE_METER: Meter = {
  readCpuNs: () => 0,
  readMemoryBytes: () => 0,
  readRest: () => ({ processes: 0, droppableBytes: 0, diskBytes: 0, receivedBytes: 0, sentBytes: 0 }),
  close: () => undefined,
}

async function metersOf(cloud: Cloud): Promise<readonly (() => Meter)[]> {
  const runs = join(cloud.dataDir, 'sandboxes', 'runs')
  const mountPoint = '/sys/fs/cgroup'
  const parent = existsSync(join(mountPoint, 'cgroup.controllers')) ? mountPoint : join(mountPoint, 'pids')
  const keys = readdirSync(join(parent, 'sandyard'))
  return await Promise.all(
    readdirSync(runs).map(async (run) => {
      const record: { readonly started: { readonly init: { readonly pid: number } } } = JSON.parse(
        await readFile(join(runs, run, 'state.json'), 'utf8'),
      )
      const key = keys.find((one) => existsSync(join(parent, 'sandyard', one, run)))
      if (key === undefined) throw new Error(`run ${run} has no cgroup`)
      const cgroup = join('sandyard', key, run)
      return () => openCgroupMeter({ cgroup, diskFolder: cloud.dataDir, initPid: record.started.init.pid })
    }),
  )
}

async function measure(cloud: Cloud, kind: string, meters: readonly (() => Meter)[]): Promise<ResultRow> {
  const dir = await mkdtemp(join(cloud.dataDir, 'bench-'))
  const open = () => openSandboxMetrics({ dir, retentionMs: 3_600_000, clock: systemClock, log: makeLog('silent') })
  const metrics = await open()
  const [idle, sampling]: [number[], number[]] = [[], []]
  await sampleAll(metrics, meters, INTERVAL_MS) // warms up the code and the files
  for (let round = 0; round < ROUNDS; round++) {
    idle.push(await loadPercent(IDLE_PHASE_MS))
    sampling.push(await sampleAll(metrics, meters, SAMPLING_PHASE_MS))
  }
  await metrics.close()
  const taken = (await stat(join(dir, 'box-0'))).blocks * 512
  await rm(dir, { recursive: true })
  const rest = restPercent(meters)
  const toPercent = (load: number): number => ((load - median(idle) + rest) * 100) / meters.length
  const percent = toPercent(median(sampling))
  const [least, most] = [Math.min(...sampling), Math.max(...sampling)].map(toPercent)
  return {
    benchmark: 'metrics',
    what: `sampling ${String(meters.length)} ${kind} sandboxes each second, for each 100`,
    measured: `${percent.toFixed(3)} % of a core (${least?.toFixed(3) ?? ''} to ${most?.toFixed(3) ?? ''} %)`,
    limit: '',
    ratio: null,
    goal: `<= ${String(GOAL_PERCENT)} %`,
    isMet: percent <= GOAL_PERCENT,
    value: percent,
    samples: { idle, sampling, rest, file_bytes: taken },
  }
}

/** Begins to sample all runs, measures the load of a phase, and ends them. */
async function sampleAll(metrics: SandboxMetrics, meters: readonly (() => Meter)[], phaseMs: number): Promise<number> {
  for (const [index, openMeter] of meters.entries()) {
    const run_id = asId<RunId>(`run-${String(index)}`)
    const sandbox_id = asId<SandboxId>(`box-${String(index)}`)
    const run = { run_id, sandbox_id, org_id: asId<OrgId>('org'), intervalMs: INTERVAL_MS, isAdopted: true }
    metrics.begin(run, openMeter)
    await pause(INTERVAL_MS / meters.length) // spread over the interval, as sandboxes are that were started at any time
  }
  await pause(INTERVAL_MS) // the first sample of a run opens its files
  const percent = await loadPercent(phaseMs)
  for (let index = 0; index < meters.length; index++) metrics.end(asId<RunId>(`run-${String(index)}`))
  return percent
}

/** The processor time that this process takes during a phase, in percent of a core. */
async function loadPercent(phaseMs: number): Promise<number> {
  const before = process.cpuUsage()
  await pause(phaseMs)
  const { user, system } = process.cpuUsage(before)
  return ((user + system) / 1_000 / phaseMs) * 100
}

/** What the sampler's rare readings of all runs take on average, in percent of a core. */
function restPercent(openMeters: readonly (() => Meter)[]): number {
  const meters = openMeters.map((open) => open())
  const before = process.cpuUsage()
  for (const meter of meters) meter.readRest()
  const { user, system } = process.cpuUsage(before)
  for (const meter of meters) meter.close()
  return ((user + system) / 1e6 / REST_SECONDS) * 100
}

const REQUESTS = 50

/** How long it takes to read what all running sandboxes use, and the last hour of one. */
async function measureLatency(cloud: Cloud): Promise<ResultRow> {
  const { body } = await cloud.call('GET', '/v1/sandboxes?limit=1')
  const [first] = body['data'] as readonly { readonly id: string }[]
  const timeOf = async (path: string): Promise<number> => {
    const from = performance.now()
    for (let index = 0; index < REQUESTS; index++) await cloud.call('GET', path)
    return (performance.now() - from) / REQUESTS
  }
  const hour = await timeOf(`/v1/sandboxes/${first?.id ?? ''}/metrics?step=1`)
  const all = await timeOf('/v1/metrics?limit=100')
  return {
    benchmark: 'metrics',
    what: 'read what 100 sandboxes use now; the last hour of one in seconds',
    measured: `${formatNumber(all)} ms; ${formatNumber(hour)} ms`,
    limit: '',
    ratio: null,
    goal: '',
    isMet: null,
  }
}
