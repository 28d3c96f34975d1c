import assert from 'node:assert/strict'
import { after, afterEach, before, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import { asId, type OrgId, type VolumeId } from '../../../../src/domain/ids.ts'
import type { NamedMount, SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import type { ClaimSettings } from '../../../../src/worker/drivers/kubernetes/claim.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import { makeDesiredRun, runVolume } from '../../../support/desired-run.ts'
import type { FakeClaim } from '../../../support/fake-claims.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

const NEVER = new AbortController().signal
const SETTINGS: ClaimSettings = { storageClass: 'folders', mode: 'ReadWriteOnce', sizeGib: 2 }
const CLASS = '/apis/storage.k8s.io/v1/storageclasses/folders'
const OPTIONS = { readonly: false, noexec: false, nosuid: false, nodev: false }
let fake: FakeKubernetes
let driver: TestDriver

before(async () => {
  fake = await makeFakeKubernetes()
  driver = await fake.open({ claimSettings: SETTINGS })
})
after(async () => {
  await driver.close()
  await fake.remove()
})
afterEach(async () => {
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
  fake.cluster.claims.all.clear()
  fake.cluster.answers.clear()
})

function named(name: string, more: Partial<NamedMount> = {}): NamedMount {
  const guest = `/mnt/${name}`
  return {
    type: 'named',
    name,
    guest,
    options: OPTIONS,
    stat_virtualization: 'strict',
    host_permissions: 'private',
    ...more,
  }
}

function runWith(mounts: SandboxSpec['mounts'], more: Partial<DesiredRun> = {}): DesiredRun {
  const names = new Set(mounts.flatMap((mount) => (mount.type === 'named' ? [mount.name] : [])))
  return { ...makeDesiredRun({ ...POD_SPEC, mounts }), volumes: [...names].map(runVolume), ...more }
}

function claimOf(name: string, namespace = 'sandboxes'): FakeClaim | undefined {
  return fake.cluster.claims.all.get(`${namespace}/sandyard-volume-${name}`)
}

type PodSpec = {
  readonly affinity?: unknown
  readonly securityContext: { readonly fsGroup?: number }
  readonly containers: readonly { readonly name: string; readonly volumeMounts: readonly { readonly name: string }[] }[]
  readonly volumes: readonly { readonly name: string }[]
}
function podOf({ run_id }: DesiredRun): PodSpec {
  const pod = fake.cluster.pods.get(`sandyard-${run_id}`)
  assert.ok(pod)
  return pod.spec as PodSpec
}

function key(name: string) {
  return { org_id: asId<OrgId>('org'), volume_id: asId<VolumeId>(name) }
}

test('a volume is one claim, made at its first mount, and every later run mounts the same', async () => {
  const first = runWith([named('data'), named('data', { guest: '/again', options: { ...OPTIONS, readonly: true } })])
  await driver.start(first, NEVER)
  const claim = claimOf('data')
  assert.deepEqual(claim?.spec, {
    accessModes: ['ReadWriteOnce'],
    storageClassName: 'folders',
    volumeMode: 'Filesystem',
    resources: { requests: { storage: '2Gi' } },
  })
  assert.deepEqual(claim.metadata.labels, { 'sandyard.dev/organization': 'org', 'sandyard.dev/volume': 'data' })
  const { volumes, containers, securityContext } = podOf(first)
  assert.deepEqual(
    volumes.filter(({ name }) => name.startsWith('volume')),
    [{ name: 'volume-0', persistentVolumeClaim: { claimName: 'sandyard-volume-data' } }],
  )
  assert.deepEqual(
    containers.find(({ name }) => name === 'sandbox')?.volumeMounts.filter(({ name }) => name.startsWith('volume')),
    [
      { name: 'volume-0', mountPath: '/mnt/data', readOnly: false },
      { name: 'volume-0', mountPath: '/again', readOnly: true },
    ],
  )
  assert.equal(securityContext.fsGroup, 1000)
  await driver.remove(first.run_id)
  const second = runWith([named('data')])
  await driver.start(second, NEVER)
  assert.equal(claimOf('data')?.metadata.uid, claim.metadata.uid)
  assert.equal(fake.cluster.claims.all.size, 1)
})

test('a lost answer to the create of a claim makes no second one, and trouble of the API server only delays', async () => {
  fake.cluster.faults.refuse.push({ method: 'GET', status: 500 }, { method: 'POST', status: 503 })
  const run = runWith([named('data')])
  await driver.start(run, NEVER)
  assert.equal(fake.cluster.claims.all.size, 1)
  assert.equal((await driver.list())[0]?.phase, 'running')
})

test('Pods that share a claim of one node meet on it, and others go anywhere', async () => {
  const [first, second] = [runWith([named('data')]), runWith([named('data')])]
  await driver.start(first, NEVER)
  const label = { key: 'sandyard.dev/volume-data', operator: 'Exists' }
  const term = { labelSelector: { matchExpressions: [label] }, topologyKey: 'kubernetes.io/hostname' }
  assert.deepEqual(podOf(first).affinity, {
    podAffinity: { requiredDuringSchedulingIgnoredDuringExecution: [term] },
  })
  await driver.start(second, NEVER)
  const matchFields = [{ key: 'metadata.name', operator: 'In', values: ['node'] }]
  assert.deepEqual(podOf(second).affinity, {
    nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: [{ matchFields }] } },
  })
  const claim = claimOf('data')
  assert.ok(claim)
  claim.status.accessModes = ['ReadWriteMany'] // what the volume behind the claim really has counts
  const third = runWith([named('data')])
  await driver.start(third, NEVER)
  assert.equal(podOf(third).affinity, undefined)
})

test('a claim of one Pod refuses a second sandbox by name, until the first has ended', async () => {
  const first = runWith([named('data')])
  await driver.start(first, NEVER)
  const claim = claimOf('data')
  assert.ok(claim)
  claim.status.accessModes = ['ReadWriteOncePod']
  const second = runWith([named('data')])
  await refused(second, /the volume 'data' is in use, and its mode ReadWriteOncePod allows one sandbox at a time/)
  await driver.remove(first.run_id)
  const third = runWith([named('data')])
  await driver.start(third, NEVER)
  assert.equal((await driver.list()).find(({ run_id }) => run_id === third.run_id)?.phase, 'running')
})

async function refused(run: DesiredRun, pattern: RegExp): Promise<void> {
  await assert.rejects(driver.start(run, NEVER), (error) => error instanceof StartError && pattern.test(error.message))
  await driver.remove(run.run_id)
}

test('what no claim can be is refused by name, and makes no Pod', async () => {
  const capped = { ...runVolume('data'), capacity_bytes: 1 }
  await refused(runWith([named('data')], { volumes: [capped] }), /'data' has a cap/)
  await refused(runWith([named('data')], { volumes: [] }), /mounts\[0\]: the volume 'data' does not exist/)
  await refused(runWith([named('data', { options: { ...OPTIONS, noexec: true } })]), /mounts\[0\]\.noexec/)
  await refused(runWith([named('data', { guest: '/.msb/tools' })]), /mounts\[0\]\.guest/)
  const other = runWith([named('data')])
  await driver.start(other, NEVER)
  await driver.remove(other.run_id)
  const ofOther = { ...runWith([named('data')]), org_id: asId<OrgId>('other') }
  await refused(
    { ...ofOther, volumes: [{ ...runVolume('data'), org_id: asId<OrgId>('other') }] },
    /not of this organization/,
  )
  assert.equal(fake.cluster.pods.size, 0)
})

test('a volume that is deleted takes its claim with it, but not while a Pod mounts it', async () => {
  const run = runWith([named('data')])
  await driver.start(run, NEVER)
  assert.ok(driver.volumes)
  const { volumes } = driver
  assert.deepEqual(await volumes.measure(), [{ ...key('data'), used_bytes: 2 * 1024 ** 3 }])
  await assert.rejects(volumes.remove(key('data')), /mounted by the Pod sandyard-/)
  assert.equal(claimOf('data')?.metadata.deletionTimestamp, undefined)
  await driver.remove(run.run_id)
  await volumes.remove(key('data'))
  await volumes.remove(key('data'))
  assert.equal(claimOf('data'), undefined)
  assert.deepEqual(await volumes.measure(), [])
})

test('a claim that is being deleted is still reported, and not mounted', async () => {
  const run = runWith([named('data')])
  await driver.start(run, NEVER)
  await driver.remove(run.run_id)
  const claim = claimOf('data')
  assert.ok(claim)
  claim.metadata.deletionTimestamp = '2026-01-01T00:00:00Z'
  assert.equal((await driver.volumes?.measure())?.length, 1)
  await refused(runWith([named('data')]), /the claim of the volume 'data' is being deleted/)
})

test('volumes outlive the worker, which finds the claims of all namespaces again', async () => {
  const dir = `${fake.folder}/organizations`
  const options = { dir, claimSettings: SETTINGS, namespaceMode: 'organization' } as const
  const first = await fake.open(options)
  const run = runWith([named('data')])
  await first.start(run, NEVER)
  assert.ok(claimOf('data', 'sandboxes-org'))
  const quota = fake.cluster.objects.get('/api/v1/namespaces/sandboxes-org/resourcequotas/sandyard')
  assert.ok(quota)
  const { hard } = quota['spec'] as { hard: Record<string, string> }
  assert.deepEqual([hard['persistentvolumeclaims'], hard['requests.storage']], ['10000', '20000Gi'])
  await first.close()
  const second = await fake.open(options)
  assert.deepEqual(await second.volumes?.measure(), [{ ...key('data'), used_bytes: 2 * 1024 ** 3 }])
  assert.equal((await second.list())[0]?.phase, 'running')
  await second.remove(run.run_id)
  await second.close()
  await assert.rejects(fake.open({ ...options, namespaceMode: 'shared' }), /volumes in namespace sandboxes-org/)
})

test('the ability and the storage are offered only if the cluster has the class and takes claims', async () => {
  const report = async (subject: TestDriver) => (await subject.probe()).report.abilities.includes('named_mounts')
  assert.equal(await report(driver), true)
  assert.equal(driver.volumes?.report.enforces_caps, false)
  const without = await fake.open({ dir: `${fake.folder}/none` })
  assert.equal(await report(without), false)
  assert.equal(without.volumes, undefined)
  await refusedBy(without)
  await without.close()
  const open = () => fake.open({ dir: `${fake.folder}/refused`, claimSettings: SETTINGS })
  fake.cluster.answers.set(CLASS, 404)
  await assert.rejects(open, /has no StorageClass folders/)
  fake.cluster.answers.set(CLASS, 403)
  await assert.rejects(open, /may not read the StorageClass folders/)
  fake.cluster.answers.delete(CLASS)
  const claims = fake.cluster.claims.all.size
  fake.cluster.faults.denied.add('persistentvolumeclaims')
  await assert.rejects(
    open,
    /refuses PersistentVolumeClaims of the class folders \(.+VOLUME_CLASS\) and the mode ReadWriteOnce \(.+VOLUME_MODE\) in namespace sandboxes/,
  )
  fake.cluster.faults.denied.clear()
  assert.equal(fake.cluster.claims.all.size, claims)
})

async function refusedBy(subject: TestDriver): Promise<void> {
  const run = runWith([named('data')])
  await assert.rejects(subject.start(run, NEVER), /the volume 'data' does not exist/)
  await subject.remove(run.run_id)
}
