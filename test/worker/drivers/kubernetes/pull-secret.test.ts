import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import type { FakeObject } from '../../../support/fake-kubernetes.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

const NEVER = new AbortController().signal
let fake: FakeKubernetes
let driver: TestDriver

before(async () => {
  fake = await makeFakeKubernetes()
  driver = await fake.open()
})
after(async () => {
  await driver.close()
  await fake.remove()
})

function runWith(image: string, memory_mib = 64): DesiredRun {
  const resources = { ...DEFAULT_SPEC_FOR_TESTS.resources, memory_mib, vcpus: 1 }
  const registry_auth = { username: 'puller', password: 'pass:word' }
  return { ...makeDesiredRun({ ...POD_SPEC, image, resources }), registry_auth }
}

function secretOf({ run_id }: DesiredRun): FakeObject | undefined {
  return fake.cluster.objects.get(`/api/v1/namespaces/sandboxes/secrets/sandyard-${run_id}`)
}

test('a credential is a Secret for the registry of the image, which the Pod uses, owns and takes along', async () => {
  const run = runWith('registry.example:5000/team/box:1')
  await driver.start(run, NEVER)
  const pod = fake.cluster.pods.get(`sandyard-${run.run_id}`)
  assert.deepEqual(pod?.spec['imagePullSecrets'], [{ name: `sandyard-${run.run_id}` }])
  const secret = secretOf(run)
  assert.equal(secret?.['type'], 'kubernetes.io/dockerconfigjson')
  const { '.dockerconfigjson': content = '' } = secret['data'] as Record<string, string>
  const auth = Buffer.from('puller:pass:word').toString('base64')
  assert.deepEqual(JSON.parse(Buffer.from(content, 'base64').toString('utf8')), {
    auths: { 'registry.example:5000': { username: 'puller', password: 'pass:word', auth } },
  })
  assert.deepEqual(secret.metadata, {
    name: `sandyard-${run.run_id}`,
    ownerReferences: [{ apiVersion: 'v1', kind: 'Pod', name: `sandyard-${run.run_id}`, uid: pod.metadata.uid }],
  })
  await driver.remove(run.run_id)
  assert.equal(secretOf(run), undefined)
})

test('a start with a credential that fails leaves no Secret', async () => {
  const run = runWith('127.0.0.1:1/none:1')
  await assert.rejects(driver.start(run, NEVER), (error) => error instanceof StartError && error.reason === 'image')
  assert.equal(secretOf(run), undefined)
  await driver.remove(run.run_id)
})

test('an image that names no registry gets no credential, because the cluster may complete its name differently', async () => {
  const run = runWith('team/box:1')
  await assert.rejects(driver.start(run, NEVER), (error) => error instanceof StartError && error.reason === 'registry')
  assert.equal(secretOf(run), undefined)
  await driver.remove(run.run_id)
})

test('a worker that may not create Secrets says so', async () => {
  fake.cluster.faults.refuse.push({ method: 'POST', status: 403 })
  const run = runWith('registry.example/box:1')
  await assert.rejects(driver.start(run, NEVER), /may not create Secrets/)
  await driver.remove(run.run_id)
})

test('a node that pulls before it has read the Secret tries again, and without a Secret the start fails', async () => {
  const run = runWith('127.0.0.1:2/late:1')
  await driver.start(run, NEVER)
  await driver.remove(run.run_id)
  const without = { ...runWith('127.0.0.1:2/late:1'), registry_auth: null }
  await assert.rejects(driver.start(without, NEVER), /no basic auth credentials/)
  await driver.remove(without.run_id)
})
