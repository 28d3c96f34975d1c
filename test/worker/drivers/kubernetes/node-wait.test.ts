import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  describeWaiting,
  podNameOf,
  SANDBOX_CONTAINER,
  type Pod,
} from '../../../../src/worker/drivers/kubernetes/pod.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeFakeKubernetes } from '../../../support/kubernetes-driver.ts'
import { makeTestLogs, readAll } from '../../../support/logs.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { waitUntil } from '../../../support/wait.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

const METADATA = { name: 'pod', namespace: 'sandboxes', uid: '1', resourceVersion: '1' }
const NEVER = new AbortController().signal

test('the log of a sandbox says why the scheduler finds no node, each reason once and without names of taints', async () => {
  const { logs, remove } = await makeTestLogs()
  const fake = await makeFakeKubernetes()
  const driver = await fake.open({ logs })
  const desired = makeDesiredRun({
    ...POD_SPEC,
    resources: { ...DEFAULT_SPEC_FOR_TESTS.resources, memory_mib: 10_000_000 },
  })
  const cancelled = assert.rejects(driver.start(desired, NEVER))
  await waitUntil(() => fake.cluster.pods.has(podNameOf(desired.run_id)))
  const waits = async (): Promise<readonly string[]> =>
    (await readAll(logs, desired.sandbox_id)).map(({ text }) => text).filter((line) => /waits for a node/.test(line))
  const reasons = [
    '1 Insufficient memory.',
    '1 node(s) had untolerated taint {tenant: acme}.',
    '1 Insufficient memory.',
  ]
  for (const [index, reason] of reasons.entries()) {
    const condition = {
      type: 'PodScheduled',
      status: 'False',
      message: `0/${String(index % 2)} nodes are available: ${reason}`,
    }
    fake.cluster.setStatus(podNameOf(desired.run_id), { conditions: [condition] })
    await waitUntil(async () => (await waits()).length === Math.min(index + 1, 2))
  }
  assert.deepEqual(
    (await waits()).map((line) => line.trim()),
    [
      'the Pod waits for a node: 0/0 nodes are available: 1 Insufficient memory.',
      'the Pod waits for a node: 0/1 nodes are available: 1 node(s) had untolerated taint.',
    ],
  )
  await driver.remove(desired.run_id)
  await cancelled
  await fake.remove()
  await remove()
})

test('what a Pod waits for is what the scheduler says, without the names of taints, or else the kubelet', () => {
  const waiting = (status: NonNullable<Pod['status']>): string =>
    describeWaiting({ metadata: METADATA, status }, SANDBOX_CONTAINER)
  const unscheduled = (message: string) => ({ type: 'PodScheduled', status: 'False', message })
  const pulls = [{ name: SANDBOX_CONTAINER, state: { waiting: { reason: 'ErrImagePull', message: 'no such image' } } }]
  const ofTaint = '0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {tenant: acme}. preempt'
  assert.equal(
    waiting({ conditions: [unscheduled(ofTaint)], containerStatuses: pulls }),
    '0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint. preempt',
  )
  assert.equal(waiting({ conditions: [unscheduled('')], containerStatuses: pulls }), 'no such image')
  assert.equal(waiting({ conditions: [unscheduled(`${'x'.repeat(498)} {tenant`)] }).includes('{'), false)
  assert.equal(waiting({}), 'the cluster does not say why')
})
