import { waitForDemoImage } from './start.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import { median, formatNumber } from './support/numbers.ts'
import { ociUnavailableReason } from './support/oci.ts'
import { pause } from './support/pause.ts'
import { makeRawStarter } from './support/raw-start.ts'
import type { ResultRow } from './support/report.ts'

const ROUNDS = 3
/** The number of sandboxes of a round, and how many start at a time. Fewer at a time would keep two cores busy, too. */
const COUNT = 40
const AT_ONCE = 8
/** The pause between rounds, in which deletions finish. */
const SETTLE_MS = 3_000

const BODY = { image: { type: 'oci', reference: 'localhost/demo' }, resources: { vcpus: 1, memory_mib: 64 } }

/**
 * Measures starts of real sandboxes per second, from the create request to `running`, over HTTP. The limit is the
 * runtime alone: it creates and starts the same number of containers, as many at a time. The disks, mounts and networks
 * of these containers are prepared before the measurement.
 */
export async function benchStarts(): Promise<readonly ResultRow[]> {
  const reason = ociUnavailableReason()
  if (reason !== null) throw new Error(`no real sandbox can be started here: ${reason}`)
  await using cloud = await startCloud({ SANDYARD_VCPU_OVERCOMMIT: '1000' })
  await waitForDemoImage(cloud)
  const rounds: { ours: number; runtime: number }[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const runtime = await rateOfRuntime(cloud)
    await pause(SETTLE_MS)
    const ours = await rateOfCloud(cloud, round)
    await pause(SETTLE_MS)
    rounds.push({ ours, runtime })
  }
  const ratio = median(rounds.map(({ ours, runtime }) => ours / runtime))
  return [
    {
      benchmark: 'starts',
      what: `real sandboxes started, ${String(AT_ONCE)} at a time`,
      measured: `${formatNumber(median(rounds.map(({ ours }) => ours)))} /s`,
      limit: `runtime alone ${formatNumber(median(rounds.map(({ runtime }) => runtime)))} /s`,
      ratio,
      goal: '>= 0.8',
      isMet: ratio >= 0.8,
      samples: rounds,
    },
  ]
}

async function rateOfRuntime(cloud: Cloud): Promise<number> {
  await using raw = await makeRawStarter(cloud.dataDir, { name: 'raw', ...BODY })
  return await rateOf(await raw.prepare(COUNT))
}

async function rateOfCloud(cloud: Cloud, round: number): Promise<number> {
  const ids: string[] = []
  const start = async (n: number): Promise<void> => {
    const name = `bench-starts-${String(round)}-${String(n)}`
    const { body } = await cloud.call('POST', '/v1/sandboxes?start=true&wait_for=running', { name, ...BODY })
    if (body['status'] !== 'running') throw new Error(`a start failed: ${JSON.stringify(body)}`)
    ids.push(String(body['id']))
  }
  try {
    return await rateOf(Array.from({ length: COUNT }, (_, n) => () => start(n)))
  } finally {
    await Promise.all(ids.map((id) => cloud.call('DELETE', `/v1/sandboxes/${id}`)))
  }
}

/** Runs the functions in `work`, `AT_ONCE` at a time. Resolves with how many of them ended per second. */
async function rateOf(work: readonly (() => Promise<void>)[]): Promise<number> {
  const left = [...work]
  const fromMs = performance.now()
  const one = async (): Promise<void> => {
    for (let next = left.pop(); next !== undefined; next = left.pop()) await next()
  }
  await Promise.all(Array.from({ length: AT_ONCE }, one))
  return work.length / ((performance.now() - fromMs) / 1000)
}
