import assert from 'node:assert/strict'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import { systemClock } from '../../../../src/lib/clock.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import { makeServedImages } from '../../../../src/worker/drivers/kubernetes/served-images.ts'
import { NO_DISK_RESERVE } from '../../../../src/worker/disk-reserve.ts'
import { DEFAULT_IMAGE_LIMITS } from '../../../../src/worker/images/image.ts'
import { openLoadedImages } from '../../../../src/worker/registry/loaded-images.ts'
import { makePullAccess } from '../../../../src/worker/registry/pull-access.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { makeTestImage, writeLayout, type TestImage } from '../../../support/test-image.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

const NEVER = new AbortController().signal
const ADDRESS = '10.96.1.1:5443'
let fake: FakeKubernetes
let driver: TestDriver
let image: TestImage

before(async () => {
  fake = await makeFakeKubernetes()
  image = await makeTestImage({ layers: [[{ path: 'file', content: 'content' }]] })
  const layout = join(fake.folder, 'layout')
  await mkdir(layout)
  await writeLayout(image, layout)
  const images = await openLoadedImages({
    dir: join(fake.folder, 'images'),
    limits: DEFAULT_IMAGE_LIMITS,
    storeBytes: Number.POSITIVE_INFINITY,
    reserve: NO_DISK_RESERVE,
    defaultRegistry: 'docker.io',
    clock: systemClock,
    log: makeLog('silent'),
  })
  for (const reference of ['localhost/demo', 'registry.example:5000/team/box:1', 'library/box'])
    await images.load(layout, reference, NEVER)
  const access = makePullAccess(Buffer.alloc(32, 1))
  driver = await fake.open({ images: makeServedImages({ images, access, address: ADDRESS }) })
})
after(async () => {
  await driver.close()
  await fake.remove()
})

/** Starts a run, and resolves with the image and the pull credentials of its Pod. */
async function startWith(spec: Partial<DesiredRun['spec']>) {
  const desired = makeDesiredRun({ ...POD_SPEC, ...spec })
  await driver.start(desired, NEVER)
  const name = `sandyard-${desired.run_id}`
  const containers = fake.cluster.pods.get(name)?.spec['containers'] as {
    name: string
    image: string
    imagePullPolicy: string
  }[]
  const path = `/api/v1/namespaces/sandboxes/secrets/${name}`
  const data = fake.cluster.objects.get(path)?.['data'] as Record<string, string> | undefined
  const text = Buffer.from(data?.['.dockerconfigjson'] ?? '', 'base64').toString('utf8')
  await driver.remove(desired.run_id)
  assert.equal(fake.cluster.objects.has(path), false, 'the Secret is gone with the run')
  const auths = text === '' ? null : (JSON.parse(text) as { auths: Record<string, { username: string }> }).auths
  const sandbox = containers.find(({ name: is }) => is === 'sandbox')
  return { image: sandbox?.image, policy: sandbox?.imagePullPolicy, auths }
}

test('a Pod pulls a loaded image from its worker by digest, with a credential for that image alone', async () => {
  for (const [reference, repository] of [
    ['localhost/demo', 'localhost/demo'],
    ['registry.example:5000/team/box:1', 'registry.example-5000/team/box'],
    ['box', 'docker.io/library/box'],
  ] as const) {
    const started = await startWith({ image: reference })
    assert.equal(started.image, `${ADDRESS}/${repository}@${image.digest}`)
    assert.equal(started.policy, 'IfNotPresent')
    assert.deepEqual(Object.keys(started.auths ?? {}), [ADDRESS])
    assert.equal(started.auths?.[ADDRESS]?.username, repository)
  }
})

test('the policy `always` asks the registry that an image names, and a local image names none', async () => {
  const named = await startWith({ image: 'registry.example:5000/team/box:1', pull_policy: 'always' })
  assert.deepEqual([named.image, named.auths], ['registry.example:5000/team/box:1', null])
  const local = await startWith({ image: 'localhost/demo', pull_policy: 'always' })
  assert.equal(local.image, `${ADDRESS}/localhost/demo@${image.digest}`)
})

test("an image that was not loaded is the cluster's to pull", async () => {
  const { image: pulled, auths } = await startWith({ image: 'registry.example:5000/team/box:2' })
  assert.deepEqual([pulled, auths], ['registry.example:5000/team/box:2', null])
})
