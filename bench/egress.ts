import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { WaySamples } from './support/egress-world.ts'
import { formatNumber, median, quantile } from './support/numbers.ts'
import type { ResultRow } from './support/report.ts'

const WORLD = fileURLToPath(new URL('support/egress-world.ts', import.meta.url))
const LIMIT_MS = 600_000
/** What the egress process must pass for each second of one core. */
const GOAL_MB_PER_CPU_SECOND = 100

/**
 * Downloads 512 MiB five times by each way out of a sandbox, and opens 40 connections one after the other, against a bare
 * socket to the same server.
 */
export async function benchEgress(): Promise<readonly ResultRow[]> {
  const samples = await measureWays()
  const of = (way: string): WaySamples => {
    const found = samples[way]
    if (found === undefined) throw new Error(`no samples of '${way}'`)
    return found
  }
  const rows = ['plain', 'by name, HTTP', 'plain TLS', 'by name, TLS', 'intercepted TLS'].map((way) => {
    const limit = way.includes('TLS') ? 'bare TLS' : 'bare'
    return [rateRow(way, of(way), of(limit)), latencyRow(way, of(way), of(limit))]
  })
  return rows.flat()
}

function rateRow(way: string, { rates, perCpuSecond }: WaySamples, limit: WaySamples): ResultRow {
  const perCpu = perCpuSecond.length === 0 ? null : median(perCpuSecond)
  return {
    benchmark: 'egress',
    what: `${way}: 512 MiB`,
    measured: `${formatNumber(median(rates))} MB/s${perCpu === null ? '' : `, ${formatNumber(perCpu)} MB for each processor second of the egress process`}`,
    limit: `${formatNumber(median(limit.rates))} MB/s`,
    ratio: median(rates) / median(limit.rates),
    goal: perCpu === null ? '' : `>= ${String(GOAL_MB_PER_CPU_SECOND)} MB for each processor second`,
    isMet: perCpu === null ? null : perCpu >= GOAL_MB_PER_CPU_SECOND,
    samples: { rates, perCpuSecond },
  }
}

function latencyRow(way: string, { latenciesMs }: WaySamples, limit: WaySamples): ResultRow {
  const describe = (all: readonly number[]): string =>
    `first ${formatNumber(all[0] ?? 0)}, then ${formatNumber(median(all.slice(1)))} (p95 ${formatNumber(quantile(all.slice(1), 0.95))}) ms`
  return {
    benchmark: 'egress',
    what: `${way}: a connection and a request of one byte`,
    measured: describe(latenciesMs),
    limit: describe(limit.latenciesMs),
    ratio: median(latenciesMs.slice(1)) / median(limit.latenciesMs.slice(1)),
    goal: '',
    isMet: null,
    samples: latenciesMs,
  }
}

/** Runs the world in namespaces of its own, which end with it. */
async function measureWays(): Promise<Readonly<Record<string, WaySamples>>> {
  const prepare =
    'mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && ip link set lo up && echo 0 > /proc/sys/net/ipv4/ip_forward && exec "$@"'
  const unshare = ['--net', '--mount', '--propagation', 'private', 'sh', '-c', prepare, 'sh', process.execPath, WORLD]
  const { stdout, status } = spawnSync('unshare', unshare, {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
    timeout: LIMIT_MS,
  })
  if (status !== 0) throw new Error(`the world ended with ${String(status)}`)
  return await Promise.resolve(JSON.parse(stdout) as Readonly<Record<string, WaySamples>>)
}
