import assert from 'node:assert/strict'
import { text } from 'node:stream/consumers'
import { after, before, beforeEach, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import { asId, type OrgId } from '../../../../src/domain/ids.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import type { FakeObject } from '../../../support/fake-kubernetes.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

const NEVER = new AbortController().signal
/** A worker without volumes allows no claims. */
const NO_CLAIMS = { persistentvolumeclaims: '0', 'requests.storage': '0Gi' }
let fake: FakeKubernetes
let driver: TestDriver

before(async () => {
  fake = await makeFakeKubernetes()
  driver = await fake.open({ namespaceMode: 'auto' })
})
after(async () => {
  await driver.close()
  await fake.remove()
})
beforeEach(() => {
  fake.cluster.requests.clear()
})

function runOf(org: string, more: Partial<DesiredRun> = {}): DesiredRun {
  return { ...makeDesiredRun(POD_SPEC), org_id: asId<OrgId>(org), ...more }
}

function namespaceOf({ run_id }: DesiredRun): string | undefined {
  return fake.cluster.pods.get(`sandyard-${run_id}`)?.metadata.namespace
}

function objectOf(kind: string, namespace: string, api = '/api/v1', name = 'sandyard'): FakeObject | undefined {
  return fake.cluster.objects.get(`${api}/namespaces/${namespace}/${kind}/${name}`)
}

test('each organization has a namespace of its own, which is restricted and bounded by its plan', async () => {
  const org_limits = { max_running: 3, max_vcpus_per_sandbox: 2, max_memory_mib_per_sandbox: 512 }
  const [one, two] = [runOf('one', { org_limits }), runOf('two')]
  await driver.start(one, NEVER)
  await driver.start(two, NEVER)
  assert.deepEqual([namespaceOf(one), namespaceOf(two)], ['sandboxes-one', 'sandboxes-two'])
  assert.deepEqual(fake.cluster.objects.get('/api/v1/namespaces/sandboxes-one')?.metadata.labels, {
    'sandyard.dev/organization': 'one',
    'pod-security.kubernetes.io/enforce': 'restricted',
  })
  assert.deepEqual(objectOf('resourcequotas', 'sandboxes-one')?.['spec'], {
    hard: { 'limits.cpu': '6', 'limits.memory': '1536Mi', pods: '3', ...NO_CLAIMS },
  })
  const largest = { cpu: '2', memory: '512Mi' }
  assert.deepEqual(objectOf('limitranges', 'sandboxes-one')?.['spec'], {
    limits: [{ type: 'Container', max: largest, default: largest }],
  })
  // Without limits of a plan, the worker's capacity is the bound: the fake's node has 8 vCPUs and 16 GiB.
  assert.deepEqual(objectOf('resourcequotas', 'sandboxes-two')?.['spec'], {
    hard: { 'limits.cpu': '8', 'limits.memory': '16384Mi', ...NO_CLAIMS },
  })
  const policy = objectOf('networkpolicies', 'sandboxes-one', '/apis/networking.k8s.io/v1')?.['spec']
  assert.deepEqual((policy as { policyTypes: string[] }).policyTypes, ['Ingress', 'Egress'])
  assert.equal('ingress' in (policy as object), false)
  assert.equal(
    objectOf('serviceaccounts', 'sandboxes-one', '/api/v1', 'default')?.['automountServiceAccountToken'],
    false,
  )
  const guest = await driver.guestOf(one.run_id)
  const plain = { env: [], cwd: null, user: null, tty: null, rlimits: [] }
  assert.equal(await text((await guest.exec({ cmd: 'echo', args: ['fine'], ...plain })).stdout), 'fine\n')
  await driver.remove(one.run_id)
  await driver.remove(two.run_id)
  assert.equal(fake.cluster.pods.size, 0)
})

test('a further start makes nothing again, unless the plan has changed', async () => {
  const first = runOf('known')
  await driver.start(first, NEVER)
  fake.cluster.requests.clear()
  const org_limits = { max_running: 9, max_vcpus_per_sandbox: 1, max_memory_mib_per_sandbox: 128 }
  const second = runOf('known')
  await driver.start(second, NEVER)
  assert.equal(fake.cluster.requests.get('PATCH object'), undefined)
  const third = runOf('known', { org_limits })
  await driver.start(third, NEVER)
  assert.deepEqual(objectOf('resourcequotas', 'sandboxes-known')?.['spec'], {
    hard: { 'limits.cpu': '8', 'limits.memory': '1152Mi', pods: '9', ...NO_CLAIMS },
  })
  for (const { run_id } of [first, second, third]) await driver.remove(run_id)
})

test('a right that is observed late, and trouble of the API server, only delay a start', async () => {
  fake.cluster.faults.refuse.push({ method: 'PATCH', status: 403 }, { method: 'PATCH', status: 500 })
  const run = runOf('late')
  await driver.start(run, NEVER)
  assert.equal(namespaceOf(run), 'sandboxes-late')
  await driver.remove(run.run_id)
})

test("a namespace of somebody else that has the organization's name is left alone, and the start fails in words", async () => {
  const path = '/api/v1/namespaces/sandboxes-taken'
  fake.cluster.objects.set(path, { metadata: { name: 'sandboxes-taken' } })
  const run = runOf('taken')
  await assert.rejects(
    driver.start(run, NEVER),
    (error) => error instanceof StartError && /not of this organization/.test(error.message),
  )
  assert.deepEqual(
    [...fake.cluster.objects.keys()].filter((key) => key.startsWith(path)),
    [path],
  )
  await driver.remove(run.run_id)
})

test('a namespace that was deleted is made again by the start after the one that noticed', async () => {
  const first = runOf('gone')
  await driver.start(first, NEVER)
  await driver.remove(first.run_id)
  fake.cluster.objects.delete('/api/v1/namespaces/sandboxes-gone')
  const [failing, next] = [runOf('gone'), runOf('gone')]
  await assert.rejects(driver.start(failing, NEVER), /the namespace sandboxes-gone is gone/)
  await driver.start(next, NEVER)
  assert.equal(namespaceOf(next), 'sandboxes-gone')
  await driver.remove(failing.run_id)
  await driver.remove(next.run_id)
})

test('a worker without the rights uses one namespace, unless it was told to use several', async () => {
  fake.cluster.faults.denied.add('rolebindings')
  const dir = `${fake.folder}/shared`
  const shared = await fake.open({ dir, namespaceMode: 'auto' })
  const run = runOf('one')
  await shared.start(run, NEVER)
  assert.equal(namespaceOf(run), 'sandboxes')
  await assert.rejects(
    fake.open({ dir: `${fake.folder}/strict`, namespaceMode: 'organization' }),
    /needs rights that the worker lacks in the cluster: create rolebindings/,
  )
  fake.cluster.faults.denied.clear()
  await shared.close()
  const again = await fake.open({ dir, namespaceMode: 'auto' })
  assert.equal((await again.list())[0]?.phase, 'running', 'the run goes on in the namespace that it has')
  await again.remove(run.run_id)
  await again.close()
})

test('a worker that lost its rights does not take its sandboxes for gone', async () => {
  const dir = `${fake.folder}/revoked`
  const granted = await fake.open({ dir, namespaceMode: 'auto' })
  const run = runOf('one')
  await granted.start(run, NEVER)
  await granted.close()
  fake.cluster.faults.denied.add('namespaces')
  await assert.rejects(fake.open({ dir, namespaceMode: 'auto' }), /sandboxes in other namespaces than sandboxes/)
  fake.cluster.faults.denied.clear()
  const again = await fake.open({ dir, namespaceMode: 'auto' })
  assert.equal((await again.list())[0]?.phase, 'running')
  await again.remove(run.run_id)
  await again.close()
})
