import { waitForDemoImage } from './start.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import { formatMs, formatSpreadMs, median, quantile } from './support/numbers.ts'
import { ociUnavailableReason } from './support/oci.ts'
import { pause } from './support/pause.ts'
import type { ResultRow } from './support/report.ts'
import { deleteByName, loadClient } from './support/sdk.ts'

const WARMUPS = 5
/** With 100 samples, the p99 is the second largest, and the largest in a quick run. */
const SAMPLES = 100
const QUICK_SAMPLES = 40
const BURST = 20
const BURSTS = 3
const QUICK_BURSTS = 1
/** The pauses after a sample and after a burst, in which the server prepares new disks and finishes deletions. */
const SETTLE_MS = 400
const SETTLE_BURST_MS = 4_000
const DEMO = 'localhost/demo'

const GOALS_MS = { running: 25, median: 42, p99: 100, burst: 250 } as const

/** From a create by the public client to the end of its first command: one after the other, and 20 at once. */
export async function benchFirstCommand(isQuick: boolean): Promise<readonly ResultRow[]> {
  const reason = ociUnavailableReason()
  if (reason !== null) throw new Error(`no real sandbox can be started here: ${reason}`)
  await using cloud = await startCloud({ SANDYARD_VCPU_OVERCOMMIT: '1000' })
  await waitForDemoImage(cloud)
  const { Sandbox } = await loadClient(cloud)
  const first = async (name: string): Promise<{ readonly runningMs: number; readonly firstMs: number }> => {
    const beganMs = performance.now()
    const box = await Sandbox.builder(name).image(DEMO).cpus(1).memory(64).create()
    const runningMs = performance.now() - beganMs
    await box.exec('true')
    return { runningMs, firstMs: performance.now() - beganMs }
  }
  const samples = isQuick ? QUICK_SAMPLES : SAMPLES
  const single: { readonly runningMs: number; readonly firstMs: number }[] = []
  for (let sample = -WARMUPS; sample < samples; sample++) {
    await pause(SETTLE_MS)
    const name = `bench-first-command-${String(sample + WARMUPS)}`
    const took = await first(name)
    if (sample >= 0) single.push(took)
    await deleteByName(cloud, name)
  }
  const burst: number[] = []
  for (let round = 0; round < (isQuick ? QUICK_BURSTS : BURSTS); round++) {
    await pause(SETTLE_BURST_MS)
    const names = Array.from({ length: BURST }, (_, n) => `bench-burst-${String(round)}-${String(n)}`)
    const took = await Promise.all(names.map(first))
    burst.push(...took.map(({ firstMs }) => firstMs))
    await deleteAll(cloud, names)
  }
  const runningMs = single.map((one) => one.runningMs)
  const firstMs = single.map((one) => one.firstMs)
  return [
    row('create until running, by the client', runningMs, { p: 0.5, goalMs: GOALS_MS.running }),
    row('create to the end of the first command', firstMs, { p: 0.5, goalMs: GOALS_MS.median }),
    row('create to the end of the first command', firstMs, { p: 0.99, goalMs: GOALS_MS.p99 }),
    row(`create to the end of the first command, ${String(BURST)} at once`, burst, { p: 0.5, goalMs: GOALS_MS.burst }),
  ]
}

async function deleteAll(cloud: Cloud, names: readonly string[]): Promise<void> {
  await Promise.all(names.map((name) => deleteByName(cloud, name)))
}

function row(
  what: string,
  samples: readonly number[],
  { p, goalMs }: { readonly p: 0.5 | 0.99; readonly goalMs: number },
): ResultRow {
  const value = p === 0.5 ? median(samples) : quantile(samples, p)
  const shown = p === 0.5 ? `${formatSpreadMs(samples)} (min / median / p95)` : `${formatMs(value)} ms`
  return {
    benchmark: 'first',
    what: `${what}, ${p === 0.5 ? 'median' : 'p99'}`,
    measured: shown,
    limit: '',
    ratio: null,
    value,
    goal: `<= ${String(goalMs)} ms`,
    isMet: value <= goalMs,
    samples,
  }
}
