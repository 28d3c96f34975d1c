import assert from 'node:assert/strict'
import { after, before, beforeEach, test } from 'node:test'
import { asId, type OrgId } from '../../../../src/domain/ids.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import { makeApiClient, type ApiClient } from '../../../../src/worker/kubernetes/api-client.ts'
import {
  makeObjectsQuota,
  sweepNamespaces,
} from '../../../../src/worker/drivers/kubernetes/namespaces/sweep-namespaces.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import type { FakeObject } from '../../../support/fake-kubernetes.ts'
import { makeFakeKubernetes, type FakeKubernetes } from '../../../support/kubernetes-driver.ts'
import { makeTestClock } from '../../../support/test-clock.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

const NEVER = new AbortController().signal
const DAY_MS = 86_400_000
const BASE = '/api/v1/namespaces'
const QUOTA = 'resourcequotas/sandyard-objects'
/** What the API server counts in a namespace that only workers use. */
const UNUSED = {
  ...Object.fromEntries(
    Object.keys((makeObjectsQuota().object['spec'] as { hard: object }).hard).map((kind) => [kind, '0']),
  ),
  'count/configmaps': '1',
  'count/serviceaccounts': '1',
  'count/limitranges': '1',
}
let fake: FakeKubernetes
let client: ApiClient

before(async () => {
  fake = await makeFakeKubernetes()
  client = makeApiClient(fake.cluster.access)
})
after(async () => {
  client.close()
  await fake.remove()
})
beforeEach(() => {
  fake.cluster.objects.clear()
  fake.cluster.answers.clear()
})

type Given = {
  readonly idleDays?: number
  readonly labels?: Readonly<Record<string, string>>
  readonly used?: Readonly<Record<string, string>> | null
}

/** Puts a namespace of the organization `one` into the cluster, as a sweep reads it. */
function addNamespace(clock: ReturnType<typeof makeTestClock>, name: string, given: Given = {}): FakeObject {
  const { idleDays = 8, labels = { 'sandyard.dev/organization': 'one' }, used = UNUSED } = given
  const usedAt = new Date(clock.now().getTime() - idleDays * DAY_MS).toISOString()
  const metadata = { name, uid: 'uid', resourceVersion: '7', labels, annotations: { 'sandyard.dev/used-at': usedAt } }
  const namespace = { metadata }
  fake.cluster.objects.set(`${BASE}/${name}`, namespace)
  fake.cluster.answers.set(BASE, { items: [structuredClone(namespace)] })
  if (used === null) fake.cluster.answers.set(`${BASE}/${name}/${QUOTA}`, 404)
  else
    fake.cluster.objects.set(`${BASE}/${name}/${QUOTA}`, { metadata: { name: 'sandyard-objects' }, status: { used } })
  return namespace
}

function sweep(clock: ReturnType<typeof makeTestClock>): Promise<readonly string[]> {
  const deps = { client, base: 'sandboxes', idleMs: 7 * DAY_MS, clock, log: makeLog('silent') }
  return sweepNamespaces(deps, NEVER)
}

function isThere(name: string): boolean {
  return fake.cluster.objects.has(`${BASE}/${name}`)
}

test('a namespace of an organization that had nothing for a week is deleted, and a younger one is not', async () => {
  const clock = makeTestClock()
  addNamespace(clock, 'sandboxes-one')
  assert.deepEqual(await sweep(clock), ['one'])
  assert.equal(isThere('sandboxes-one'), false)
  addNamespace(clock, 'sandboxes-one', { idleDays: 6 })
  assert.deepEqual(await sweep(clock), [])
  assert.equal(isThere('sandboxes-one'), true)
})

test('a namespace with another name than its label says is left alone', async () => {
  const clock = makeTestClock()
  addNamespace(clock, 'sandboxes-two')
  assert.deepEqual(await sweep(clock), [])
  addNamespace(clock, 'kube-system')
  assert.deepEqual(await sweep(clock), [])
  addNamespace(clock, 'sandboxes-one', { labels: {} })
  assert.deepEqual(await sweep(clock), [])
  for (const name of ['sandboxes-two', 'kube-system', 'sandboxes-one']) assert.equal(isThere(name), true)
})

test('a namespace with a volume claim, or with one object more than workers make, is left alone', async () => {
  const clock = makeTestClock()
  for (const [kind, count] of Object.entries(UNUSED)) {
    addNamespace(clock, 'sandboxes-one', { used: { ...UNUSED, [kind]: String(Number(count) + 1) } })
    assert.deepEqual(await sweep(clock), [], kind)
    const { [kind]: _unknown, ...others }: Record<string, string> = UNUSED
    addNamespace(clock, 'sandboxes-one', { used: others })
    assert.deepEqual(await sweep(clock), [], `${kind} is not counted`)
  }
  assert.equal(isThere('sandboxes-one'), true)
})

test('a namespace with a policy of others is left alone, and the policies of workers do not keep it', async () => {
  const clock = makeTestClock()
  addNamespace(clock, 'sandboxes-one')
  const path = '/apis/networking.k8s.io/v1/namespaces/sandboxes-one/networkpolicies'
  const add = (name: string, labels: Readonly<Record<string, string>> = {}): void => {
    fake.cluster.objects.set(`${path}/${name}`, { metadata: { name, labels } })
  }
  add('sandyard') // as earlier versions made it
  add('sandyard-closed', { 'sandyard.dev/network': 'base' })
  add('sandyard-1', { 'sandyard.dev/network': '1' })
  add('theirs')
  assert.deepEqual(await sweep(clock), [])
  fake.cluster.objects.delete(`${path}/theirs`)
  assert.deepEqual(await sweep(clock), ['one'])
})

test('a namespace with a Pod of anybody is left alone, and its time begins anew', async () => {
  const clock = makeTestClock()
  addNamespace(clock, 'sandboxes-one')
  fake.cluster.answers.set(`${BASE}/sandboxes-one/pods`, { items: [{ metadata: { name: 'any' } }] })
  assert.deepEqual(await sweep(clock), [])
  const { annotations } = (fake.cluster.objects.get(`${BASE}/sandboxes-one`)?.metadata ?? {}) as {
    annotations?: Record<string, string>
  }
  assert.equal(annotations?.['sandyard.dev/used-at'], clock.now().toISOString())
})

test('a namespace that a start has used since it was read is not deleted', async () => {
  const clock = makeTestClock()
  const namespace = addNamespace(clock, 'sandboxes-one')
  Object.assign(namespace.metadata, { resourceVersion: '8' })
  assert.deepEqual(await sweep(clock), [])
  assert.equal(isThere('sandboxes-one'), true)
})

test('a namespace whose objects are not counted, as an earlier version made it, is counted from then on', async () => {
  const clock = makeTestClock()
  addNamespace(clock, 'sandboxes-one', { used: null })
  assert.deepEqual(await sweep(clock), [])
  assert.deepEqual(
    fake.cluster.objects.get(`${BASE}/sandboxes-one/${QUOTA}`)?.['spec'],
    makeObjectsQuota().object['spec'],
  )
})

test('a start makes a namespace that can be swept later, and a worker without the rights deletes none', async () => {
  const run = { ...makeDesiredRun(POD_SPEC), org_id: asId<OrgId>('one') }
  for (const [denied, isSwept] of [
    [false, true],
    [true, false],
  ] as const) {
    fake.cluster.objects.clear()
    if (denied) fake.cluster.faults.deniedVerbs.add('delete')
    const driver = await fake.open({ namespaceMode: 'auto', dir: `${fake.folder}/${String(denied)}` })
    await driver.start(run, NEVER)
    const metadata = fake.cluster.objects.get(`${BASE}/sandboxes-one`)?.metadata
    assert.equal(JSON.stringify(metadata).includes('used-at'), isSwept)
    assert.equal(fake.cluster.objects.has(`${BASE}/sandboxes-one/${QUOTA}`), isSwept)
    await driver.remove(run.run_id)
    await driver.close()
  }
})
