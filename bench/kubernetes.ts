import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { HeldSandboxes } from './support/held-sandboxes.ts'
import type { ClusterSamples } from './support/kubernetes-world.ts'
import { formatNumber, formatSpreadMs, median } from './support/numbers.ts'
import type { ResultRow } from './support/report.ts'

const CLUSTER = fileURLToPath(new URL('../setup/engines/with-kubernetes.mjs', import.meta.url))
const WORLD = fileURLToPath(new URL('support/kubernetes-world.ts', import.meta.url))
const HELD = fileURLToPath(new URL('support/held-sandboxes.ts', import.meta.url))
const LIMIT_MS = 600_000
const LACKS_SOMETHING = 2
const GOALS = { plain: 1.2, warm: 0.25 } as const

/**
 * Sandboxes of the driver `kubernetes` on a real cluster of one node, against Pods that the API makes directly. The memory of held
 * sandboxes is measured with the tests' fake of the API, because one node can't hold a thousand Pods.
 */
export async function benchKubernetes(isQuick: boolean): Promise<readonly ResultRow[]> {
  const samples = runAsJson<ClusterSamples>(process.execPath, [
    CLUSTER,
    process.execPath,
    WORLD,
    isQuick ? 'quick' : 'full',
  ])
  if (samples === null) process.stdout.write('  NOT MEASURED ON A CLUSTER: the reason is above\n')
  const held = runAsJson<HeldSandboxes>(process.execPath, ['--expose-gc', HELD])
  return await Promise.resolve([
    ...(samples === null ? [] : clusterRows(samples)),
    ...(held === null ? [] : [memoryRow(held)]),
  ])
}

function memoryRow(held: HeldSandboxes): ResultRow {
  return {
    benchmark: 'kubernetes',
    what: `memory of the worker for each of ${String(held.count)} sandboxes held`,
    measured: `${formatNumber(held.kibEach)} KiB, with a stream to each`,
    limit: '',
    ratio: null,
    value: held.kibEach,
    goal: '',
    isMet: null,
    samples: held,
  }
}

function clusterRows(samples: ClusterSamples): readonly ResultRow[] {
  const { barePodMs, volumePodMs, sandboxMs, servedMs, bareServedMs, warmMs } = samples
  const { burst, barePodsPerSec, sandboxesPerSec, servedPerSec } = samples
  return [
    firstCommandRow('create to the end of the first command, median', sandboxMs, { barePodMs, goal: GOALS.plain }),
    firstCommandRow('the same against a bare Pod with a volume', sandboxMs, { barePodMs: volumePodMs, goal: null }),
    firstCommandRow('the same in a warm Pod, median', warmMs, { barePodMs, goal: GOALS.warm }),
    firstCommandRow('create to the end of the first command, an image that the worker serves', servedMs, {
      barePodMs: bareServedMs,
      goal: GOALS.plain,
    }),
    burstRow(`starts a second up to the first command, ${String(burst)} at once`, sandboxesPerSec, barePodsPerSec),
    burstRow('the same starts with an image that the worker serves', servedPerSec, barePodsPerSec),
    requestsRow('API requests for each life of a sandbox: create, a command, delete', samples.requests),
    requestsRow('the same with a warm Pod, whose making is included', samples.warmRequests),
    requestsRow('the same requests with an image that the worker serves', samples.servedRequests),
  ]
}

function firstCommandRow(
  what: string,
  samples: readonly number[],
  { barePodMs, goal }: { readonly barePodMs: readonly number[]; readonly goal: number | null },
): ResultRow {
  const ratio = median(samples) / median(barePodMs)
  return {
    benchmark: 'kubernetes',
    what,
    measured: formatSpreadMs(samples),
    limit: `bare Pod ${formatSpreadMs(barePodMs)}`,
    ratio,
    goal: goal === null ? '' : `<= ${String(goal)}`,
    isMet: goal === null ? null : ratio <= goal,
    samples: { samples, barePodMs },
  }
}

function burstRow(what: string, perSec: readonly number[], barePodsPerSec: readonly number[]): ResultRow {
  return {
    benchmark: 'kubernetes',
    what,
    measured: `${formatNumber(median(perSec))} /s`,
    limit: `bare Pods ${formatNumber(median(barePodsPerSec))} /s`,
    ratio: median(perSec) / median(barePodsPerSec),
    goal: '',
    isMet: null,
    samples: { perSec, barePodsPerSec },
  }
}

function requestsRow(what: string, requests: Readonly<Record<string, number>>): ResultRow {
  const total = Object.values(requests).reduce((sum, count) => sum + count, 0)
  const each = Object.entries(requests).map(([kind, count]) => `${kind} ${formatNumber(count)}`)
  return {
    benchmark: 'kubernetes',
    what,
    measured: `${formatNumber(total)} (${each.join(', ')})`,
    limit: '',
    ratio: null,
    value: total,
    goal: '',
    isMet: null,
    samples: requests,
  }
}

/** Runs a program that prints JSON. Returns null if it ends with 2: it has then said on standard error what it lacks. */
function runAsJson<Result>(program: string, args: readonly string[]): Result | null {
  const { stdout, status } = spawnSync(program, args, {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
    timeout: LIMIT_MS,
  })
  if (status === LACKS_SOMETHING) return null
  if (status !== 0) throw new Error(`${args.join(' ')} ended with ${String(status)}`)
  return JSON.parse(stdout) as Result // the program's own format
}
