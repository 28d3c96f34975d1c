import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import type { UsePoint } from '../../../../src/domain/sandboxes/use-points.ts'
import { systemClock } from '../../../../src/lib/clock.ts'
import { makeLog, type Log } from '../../../../src/lib/log.ts'
import { makePodUsage } from '../../../../src/worker/drivers/kubernetes/usage/pod-usage.ts'
import type { Pod } from '../../../../src/worker/drivers/kubernetes/pod.ts'
import { makeApiClient } from '../../../../src/worker/kubernetes/api-client.ts'
import { openSandboxMetrics } from '../../../../src/worker/metrics/sandbox-metrics.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeFakeKubernetes, type FakeKubernetes } from '../../../support/kubernetes-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { waitUntil } from '../../../support/wait.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

const SUMMARY = '/api/v1/nodes/node/proxy/stats/summary'
const METRICS = '/apis/metrics.k8s.io/v1beta1/namespaces/sandboxes/pods'
let fake: FakeKubernetes

before(async () => {
  fake = await makeFakeKubernetes()
})
after(() => fake.remove())

/** Starts a sandbox, gives each answer to the worker once the one before has become a sample, and resolves with the samples. */
async function samplesOf(name: string, answers: readonly ((pod: string) => void)[]): Promise<readonly UsePoint[]> {
  const dir = join(fake.folder, name)
  const metrics = await openSandboxMetrics({
    dir: `${dir}-metrics`,
    retentionMs: 3_600_000,
    clock: systemClock,
    log: makeLog('silent'),
  })
  const driver = await fake.open({ dir, metrics, usagePollMs: 20 })
  const runtime = { ...DEFAULT_SPEC_FOR_TESTS.runtime, metrics_sample_interval_ms: 100 }
  const desired = makeDesiredRun({ ...POD_SPEC, runtime })
  const points: UsePoint[] = []
  try {
    await driver.start(desired, new AbortController().signal)
    metrics.subscribe(desired.sandbox_id, (point) => {
      if (point !== null) points.push(point)
    })
    for (const [index, give] of answers.entries()) {
      give(`sandyard-${desired.run_id}`)
      await waitUntil(() => points.length > index)
    }
  } finally {
    await driver.remove(desired.run_id)
    await driver.close()
    await metrics.close()
    fake.cluster.answers.clear()
  }
  return points
}

const sumOf = (points: readonly UsePoint[]): number => points.reduce((sum, { cpuMs }) => sum + cpuMs, 0)

test("each measurement of the kubelet is one sample, with the sandbox's own processor time", async () => {
  const summary = (name: string, seconds: number) => ({
    podRef: { name },
    network: { rxBytes: 1_000 * seconds, txBytes: 2_000 * seconds },
    containers: [
      { name: 'fill', cpu: { time: 'x', usageCoreNanoSeconds: 1 }, memory: { workingSetBytes: 1 } },
      {
        name: 'sandbox',
        cpu: { time: `2026-01-01T00:00:${String(seconds)}Z`, usageCoreNanoSeconds: seconds * 1e8 },
        memory: { workingSetBytes: 5_000_000 },
        rootfs: { usedBytes: 7_000 },
      },
    ],
  })
  const points = await samplesOf(
    'summary',
    [10, 20, 30].map(
      (seconds) => (pod) =>
        void fake.cluster.answers.set(SUMMARY, { pods: [summary('another', 59), summary(pod, seconds)] }),
    ),
  )
  assert.equal(Math.round(sumOf(points)), 3_000)
  const [first] = points
  assert.ok(first !== undefined)
  const { memoryBytes, diskBytes, receivedBytes, sentBytes, processes } = first
  assert.deepEqual(
    { memoryBytes, diskBytes, receivedBytes, sentBytes, processes },
    { memoryBytes: 5_000_000, diskBytes: 7_000, receivedBytes: 10_000, sentBytes: 20_000, processes: null },
  )
})

test('without rights to the kubelet, the metrics API has processor and memory, and the rest is unknown', async () => {
  const metricsOf = (name: string, seconds: number, cpu: string) => ({
    metadata: { name },
    timestamp: `2026-01-01T00:00:${String(seconds)}Z`,
    window: '10s',
    containers: [{ name: 'sandbox', usage: { cpu, memory: '2Ki' } }],
  })
  fake.cluster.answers.set(SUMMARY, 403)
  const points = await samplesOf('rates', [
    (pod) => void fake.cluster.answers.set(METRICS, { items: [metricsOf(pod, 10, '200m')] }),
    (pod) => void fake.cluster.answers.set(METRICS, { items: [metricsOf(pod, 20, '300000000n')] }),
  ])
  assert.equal(Math.round(sumOf(points)), 5_000)
  assert.ok(points.every(({ memoryBytes, diskBytes, receivedBytes }) => memoryBytes === 2_048 && diskBytes === null && receivedBytes === null)) // prettier-ignore
})

test('a worker without any of these rights says so once, and has no samples', async () => {
  const client = makeApiClient(fake.cluster.access)
  const warnings: unknown[] = []
  const warn: Log['warn'] = (about: unknown) => void warnings.push(about)
  const pod: Pod = {
    metadata: { namespace: 'sandboxes', name: 'a', uid: '1', resourceVersion: '1' },
    spec: { nodeName: 'node' },
  }
  fake.cluster.answers.set(SUMMARY, 403).set(METRICS, 404)
  const usage = makePodUsage({
    client,
    podOf: () => pod,
    clock: systemClock,
    log: Object.assign(makeLog('silent'), { warn }),
    pollMs: 5,
  })
  const meter = usage.openMeter('a')
  await waitUntil(() => warnings.length > 0)
  assert.deepEqual(warnings, [{ tried: ['summary of the kubelet', 'metrics API'] }])
  assert.equal(meter.readCpuNs(), null)
  meter.close()
  await usage.close()
  client.close()
  fake.cluster.answers.clear()
})
