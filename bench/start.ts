import { startCloud, type Cloud } from './support/cloud.ts'
import { median, quantile, formatNumber, formatSpreadMs } from './support/numbers.ts'
import { ociUnavailableReason } from './support/oci.ts'
import { pause } from './support/pause.ts'
import { makeRawStarter, type RawSteps } from './support/raw-start.ts'
import type { ResultRow } from './support/report.ts'

const WARMUPS = 3
const SAMPLES = 30
/**
 * The pause between samples. In it, the server prepares new disks and networks in place of the used ones, and finishes
 * deletions.
 */
const SETTLE_MS = 400
/** The goal: the median start takes at most this many milliseconds longer than the median of the runtime's own step. */
const NEXT_GOAL_MS = 25

const BODY = { image: { type: 'oci', reference: 'localhost/demo' }, resources: { vcpus: 1, memory_mib: 512 } }

/**
 * Measures the time from `POST …?start=true&wait_for=running` to the reply. The limit is a script that runs the same
 * steps without a control plane. Samples of the server and of the script alternate.
 */
export async function benchStart(): Promise<readonly ResultRow[]> {
  const reason = ociUnavailableReason()
  if (reason !== null) throw new Error(`no real sandbox can be started here: ${reason}`)
  await using cloud = await startCloud({})
  await waitForDemoImage(cloud)
  await using raw = await makeRawStarter(cloud.dataDir, { name: 'raw', ...BODY })
  const ours: number[] = []
  const script: RawSteps[] = []
  for (let sample = -WARMUPS; sample < SAMPLES; sample++) {
    const tookMs = await startOne(cloud, `bench-start-${String(sample + WARMUPS)}`)
    await pause(SETTLE_MS)
    const steps = await raw.start()
    await pause(SETTLE_MS)
    if (sample < 0) continue
    ours.push(tookMs)
    script.push(steps)
  }
  const totals = script.map(({ total }) => total)
  const runtime = script.map((steps) => steps.runtime)
  const ratio = median(ours) / median(totals)
  const goalMs = median(runtime) + NEXT_GOAL_MS
  const steps = (['disk', 'mounts', 'network', 'runtime'] as const).map(
    (step) => `${step} ${formatNumber(median(script.map((one) => one[step])))}`,
  )
  return [
    {
      benchmark: 'start',
      what: 'create until running (min / median / p95)',
      measured: formatSpreadMs(ours),
      limit: `script ${formatSpreadMs(totals)}`,
      ratio,
      goal: '<= 1.0',
      isMet: ratio <= 1,
      samples: { ours, script },
    },
    {
      benchmark: 'start',
      what: `the same, median, against the runtime alone + ${String(NEXT_GOAL_MS)} ms`,
      measured: `${formatNumber(median(ours))} ms`,
      limit: `runtime ${formatSpreadMs(runtime)}`,
      ratio: median(ours) / goalMs,
      goal: `<= ${formatNumber(goalMs)} ms (next)`,
      isMet: median(ours) <= goalMs,
    },
    {
      benchmark: 'start',
      what: 'steps of the script, median',
      measured: `${steps.join(', ')} ms`,
      limit: `best ${formatNumber(quantile(totals, 0))} ms`,
      ratio: null,
      goal: '',
      isMet: null,
    },
  ]
}

/** Starts a sandbox and deletes it. Resolves with the duration of the start. */
async function startOne(cloud: Cloud, name: string): Promise<number> {
  const beganMs = performance.now()
  const { status, body } = await cloud.call('POST', '/v1/sandboxes?start=true&wait_for=running', { name, ...BODY })
  const tookMs = performance.now() - beganMs
  if (status !== 200 || body['status'] !== 'running')
    throw new Error(`a start failed: ${String(status)} ${JSON.stringify(body)}`)
  await cloud.call('DELETE', `/v1/sandboxes/${String(body['id'])}`)
  return tookMs
}

/** Waits until a start succeeds. A server that is ready may still be creating the demo image. */
export async function waitForDemoImage(cloud: Cloud): Promise<void> {
  for (let tries = 1; ; tries++) {
    const { body } = await cloud.call('POST', '/v1/sandboxes?start=true&wait_for=running', {
      name: `bench-first-${String(tries)}`,
      ...BODY,
    })
    await cloud.call('DELETE', `/v1/sandboxes/${String(body['id'])}`)
    if (body['status'] === 'running') return
    if (tries === 20) throw new Error(`no sandbox could be started: ${JSON.stringify(body)}`)
    await pause(1_000)
  }
}
