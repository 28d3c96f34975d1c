import assert from 'node:assert/strict'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import { makeServedImages, type ServedImages } from '../../../../src/worker/drivers/kubernetes/served-images.ts'
import type { LoadedImages } from '../../../../src/worker/registry/loaded-images.ts'
import { makePullAccess } from '../../../../src/worker/registry/pull-access.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { openTestLoadedImages, openTestToolboxImages } from '../../../support/served-images.ts'
import { makeTestImage, writeLayout, type TestImage } from '../../../support/test-image.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { waitUntil } from '../../../support/wait.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

const NEVER = new AbortController().signal
const RUN = 'sandyard.dev/run'
const ADDRESS = '10.96.1.1:5443'
const ACCESS = makePullAccess(Buffer.alloc(32, 1))
let fake: FakeKubernetes
let driver: TestDriver
let image: TestImage
let images: LoadedImages
let served: ServedImages

before(async () => {
  fake = await makeFakeKubernetes()
  image = await makeTestImage({ layers: [[{ path: 'file', content: 'content' }]] })
  const layout = join(fake.folder, 'layout')
  await mkdir(layout)
  await writeLayout(image, layout)
  images = await openTestLoadedImages(join(fake.folder, 'images'))
  for (const reference of ['localhost/demo', 'registry.example:5000/team/box:1', 'library/box'])
    await images.load(layout, reference, NEVER)
  served = makeServedImages({ images, toolbox: null, access: ACCESS, address: ADDRESS })
  driver = await fake.open({ images: served })
})
after(async () => {
  await driver.close()
  await fake.remove()
})

type Named = { readonly name: string }
type PodParts = {
  readonly containers: readonly (Named & { readonly image: string; readonly volumeMounts: readonly Named[] })[]
  readonly initContainers: readonly Named[]
  readonly volumes: readonly Named[]
}

/** The credentials in the Secret of a Pod. Null if it has none. */
function authsOf(pod: string): Readonly<Record<string, { readonly username: string }>> | null {
  const secret = fake.cluster.objects.get(`/api/v1/namespaces/sandboxes/secrets/${pod}`)
  const data = secret?.['data'] as Record<string, string> | undefined
  const text = Buffer.from(data?.['.dockerconfigjson'] ?? '', 'base64').toString('utf8')
  return text === '' ? null : (JSON.parse(text) as { auths: Record<string, { username: string }> }).auths
}

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
  const auths = authsOf(name)
  await driver.remove(desired.run_id)
  assert.equal(fake.cluster.objects.has(path), false, 'the Secret is gone with the run')
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

test('a warm Pod of a loaded image has a Secret of its own, which it owns from the beginning, and which goes with its run', async () => {
  const warm = await fake.open({ dir: join(fake.folder, 'warm'), images: served, warm: 1 })
  const start = async (more: Partial<DesiredRun> = {}): Promise<readonly [DesiredRun, string]> => {
    const desired = { ...makeDesiredRun({ ...POD_SPEC, image: 'localhost/demo' }), ...more }
    await warm.start(desired, NEVER)
    const of = [...fake.cluster.pods.values()].find(({ metadata }) => metadata.labels?.[RUN] === desired.run_id)
    return [desired, of?.metadata.name ?? '']
  }
  const isReady = (): boolean => warm.pools?.()[0]?.ready === 1
  const [first] = await start()
  await warm.remove(first.run_id)
  await waitUntil(isReady)
  const [ready] = [...fake.cluster.pods.values()]
  const name = ready?.metadata.name ?? ''
  assert.deepEqual(ready?.spec['imagePullSecrets'], [{ name }])
  assert.equal(authsOf(name)?.[ADDRESS]?.username, 'localhost/demo')
  const { metadata } = fake.cluster.objects.get(`/api/v1/namespaces/sandboxes/secrets/${name}`) ?? {}
  assert.deepEqual(metadata?.ownerReferences, [{ apiVersion: 'v1', kind: 'Pod', name, uid: ready?.metadata.uid }])
  const [second, taken] = await start()
  assert.equal(taken, name)
  await warm.remove(second.run_id)
  assert.equal(authsOf(name), null)

  await waitUntil(isReady)
  const registry_auth = { username: 'puller', password: 'of the organization' }
  const [own, plain] = await start({
    registry_auth,
    spec: { ...second.spec, image: `${ADDRESS}/localhost/demo@${image.digest}` },
  })
  assert.equal(plain, `sandyard-${own.run_id}`, 'a credential of the organization is never one of a warm Pod')
  await warm.remove(own.run_id)
  await warm.close()
  assert.deepEqual(
    [...fake.cluster.objects.keys()].filter((path) => path.includes('/secrets/')),
    [],
  )
})

test('the Pod of an image with the toolbox has only the volumes that its sandbox asks for', async () => {
  const toolbox = await openTestToolboxImages(fake.folder, images)
  const withToolbox = makeServedImages({ images, toolbox, access: ACCESS, address: ADDRESS })
  const other = await fake.open({ dir: join(fake.folder, 'toolbox'), images: withToolbox })
  const partsOf = async (spec: Partial<DesiredRun['spec']>) => {
    const desired = makeDesiredRun({ ...POD_SPEC, image: 'localhost/demo', ...spec })
    await other.start(desired, NEVER)
    const pod = fake.cluster.pods.get(`sandyard-${desired.run_id}`)?.spec as PodParts | undefined
    await other.remove(desired.run_id)
    const names = (parts: readonly Named[] = []): readonly string[] => parts.map(({ name }) => name)
    const sandbox = pod?.containers.find(({ name }) => name === 'sandbox')
    return {
      image: sandbox?.image,
      containers: [...names(pod?.initContainers), ...names(pod?.containers)],
      volumes: names(pod?.volumes),
      mounts: names(sandbox?.volumeMounts),
    }
  }
  const given = `${ADDRESS}/localhost/demo@${await toolbox.digestWith(image.digest)}`
  assert.notEqual(given, `${ADDRESS}/localhost/demo@${image.digest}`)
  const plain = { image: given, containers: ['sandbox'], volumes: [], mounts: [] }
  const { runtime } = DEFAULT_SPEC_FOR_TESTS
  assert.deepEqual(await partsOf({}), plain)
  assert.deepEqual(await partsOf({ runtime: { ...runtime, entrypoint: [], cmd: ['sleep', '60'] } }), plain)
  assert.deepEqual(await partsOf({ runtime: { ...runtime, entrypoint: null, cmd: ['sleep', '60'] } }), plain)
  const options = { readonly: false, noexec: false, nosuid: false, nodev: false }
  assert.deepEqual(await partsOf({ mounts: [{ type: 'tmpfs', guest: '/cache', size_mib: 4, options }] }), {
    ...plain,
    volumes: ['tmpfs-0'],
    mounts: ['tmpfs-0'],
  })
  const filled = { containers: ['fill', 'sandbox'], volumes: ['tools', 'scripts'], mounts: ['tools', 'scripts'] }
  assert.deepEqual(await partsOf({ runtime: { ...runtime, scripts: { hello: 'echo hello' } } }), {
    ...plain,
    ...filled,
  })
  assert.deepEqual(await partsOf({ image: 'registry.example:5000/team/box:2' }), {
    ...filled,
    image: 'registry.example:5000/team/box:2',
  })
  assert.equal(withToolbox.loadedDigestOf(await toolbox.digestWith(image.digest)), image.digest)
  assert.equal(withToolbox.loadedDigestOf(image.digest), image.digest)
  await other.close()
})

test('an image whose files are gone is refused with what to do', async () => {
  const toolbox = await openTestToolboxImages(fake.folder, images)
  await assert.rejects(
    toolbox.digestWith(`sha256:${'0'.repeat(64)}`),
    /missing; load it again by `sandyard image load`/,
  )
})
