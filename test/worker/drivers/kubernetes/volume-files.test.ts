import assert from 'node:assert/strict'
import { readdir, readFile, symlink, utimes, writeFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { PassThrough } from 'node:stream'
import { after, afterEach, before, test } from 'node:test'
import type { VolumeFiles } from '../../../../src/contract/volumes/volume-protocol.ts'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { ClaimSettings } from '../../../../src/worker/drivers/kubernetes/claim.ts'
import { makeApiClient } from '../../../../src/worker/kubernetes/api-client.ts'
import { makeDesiredRun, runVolume } from '../../../support/desired-run.ts'
import type { FakePod } from '../../../support/fake-kubernetes.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { waitUntil } from '../../../support/wait.ts'
import { contentFrom, refusal, textOf } from '../../volumes/volume-folder.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

// The operations themselves are tested in test/worker/volumes. Here are the Pods that do them.

const NEVER = new AbortController().signal
const SETTINGS: ClaimSettings = { storageClass: 'folders', mode: 'ReadWriteOnce', sizeGib: 2 }
let fake: FakeKubernetes
let driver: TestDriver

const LIMIT = { timeout: 60_000 }

before(async () => {
  fake = await makeFakeKubernetes()
  driver = await open()
})
after(async () => {
  await driver.close()
  await fake.remove()
})
afterEach(async () => {
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
  await driver.close()
  assert.deepEqual(filesPods(), [])
  fake.cluster.claims.all.clear()
  driver = await open()
})

function open(more: Parameters<FakeKubernetes['open']>[0] = {}): Promise<TestDriver> {
  return fake.open({ claimSettings: SETTINGS, ...more })
}

async function filesOf(name: string, subject: TestDriver = driver): Promise<VolumeFiles> {
  assert.ok(subject.volumes)
  return await subject.volumes.openFiles(runVolume(name))
}

function filesPods(): readonly FakePod[] {
  return [...fake.cluster.pods.values()].filter(({ metadata }) => metadata.labels?.['sandyard.dev/volume-files'])
}

function folderOf(name: string): string {
  return join(fake.folder, 'volumes/sandboxes', `sandyard-volume-${name}`)
}

function runWith(name: string): DesiredRun {
  const options = { readonly: false, noexec: false, nosuid: false, nodev: false }
  const kinds = { stat_virtualization: 'strict', host_permissions: 'private' } as const
  const mounts = [{ type: 'named', name, guest: '/mnt', options, ...kinds }] as const
  return { ...makeDesiredRun({ ...POD_SPEC, mounts }), volumes: [runVolume(name)] }
}

test(
  'the first request for the files of a volume makes its claim and a Pod, and all later ones use this Pod',
  LIMIT,
  async () => {
    const files = await filesOf('data')
    assert.deepEqual(filesPods(), [], 'a stream alone needs no Pod')
    await Promise.all([files.write('/a/one', contentFrom('1')), files.write('/two', contentFrom('2'))])
    assert.equal(await textOf(await filesOf('data'), '/a/one'), '1')
    assert.deepEqual(
      (await files.list('/')).map(({ path, uid }) => [path, uid]),
      [
        ['/a', process.getuid?.()],
        ['/two', process.getuid?.()],
      ],
    )
    assert.equal(await readFile(join(folderOf('data'), 'a/one'), 'utf8'), '1')
    assert.equal(fake.cluster.claims.all.size, 1)
    assert.equal(filesPods().length, 1)
    assert.deepEqual(await driver.list(), [], 'the Pod is no sandbox')
  },
)

test(
  'the Pod has no rights, no token and nothing of a tenant, and takes only its number of a quota',
  LIMIT,
  async () => {
    await (await filesOf('data')).mkdir('/x')
    const [pod] = filesPods()
    assert.ok(pod)
    const { containers, volumes, automountServiceAccountToken, securityContext } = pod.spec
    assert.equal(automountServiceAccountToken, false)
    assert.deepEqual(securityContext, {
      runAsNonRoot: true,
      runAsUser: 1000,
      runAsGroup: 1000,
      fsGroup: 1000,
      fsGroupChangePolicy: 'OnRootMismatch',
      seccompProfile: { type: 'RuntimeDefault' },
    })
    const [container, ...others] = containers as readonly Record<string, unknown>[]
    assert.deepEqual(others, [])
    assert.deepEqual(container?.['securityContext'], {
      allowPrivilegeEscalation: false,
      capabilities: { drop: ['ALL'] },
      readOnlyRootFilesystem: true,
    })
    assert.deepEqual(container['resources'], { requests: { cpu: '0', memory: '0' }, limits: { cpu: '0', memory: '0' } })
    assert.deepEqual(volumes, [{ name: 'volume', persistentVolumeClaim: { claimName: 'sandyard-volume-data' } }])
  },
)

test('a Pod is deleted some time after the last request, and not while content is transferred', LIMIT, async () => {
  const quick = await open({ dir: `${fake.folder}/quick`, filesIdleMs: 200 })
  const files = await filesOf('data', quick)
  await files.write('/large', contentFrom('x'.repeat(8 * 1024 * 1024)))
  const { content } = await files.read('/large')
  const upload = new PassThrough()
  const writing = files.write('/slow', upload)
  upload.write('half')
  const [pod] = filesPods()
  let bytes = 0
  for await (const piece of content as AsyncIterable<Buffer>) bytes += piece.length
  assert.equal(bytes, 8 * 1024 * 1024)
  assert.equal(filesPods()[0]?.metadata.uid, pod?.metadata.uid)
  upload.end(' and half')
  await writing
  await waitUntil(() => filesPods().length === 0)
  assert.equal(await textOf(files, '/slow'), 'half and half', 'the next request gets a new Pod')
  await quick.close()
  assert.deepEqual(filesPods(), [], 'the last Pod goes with the worker')
})

test('a symlink of a sandbox leads no request out of the volume', LIMIT, async () => {
  const files = await filesOf('data')
  await files.mkdir('/x')
  await symlink('/proc/self/environ', join(folderOf('data'), 'out'))
  await assert.rejects(files.read('/out'), refusal('invalid_volume_path'))
  await assert.rejects(files.write('/out', contentFrom('x')), refusal('invalid_volume_path'))
})

test('a Pod that never starts is given up, deleted, and named as the reason', LIMIT, async () => {
  const broken = await open({
    dir: `${fake.folder}/broken`,
    helperImage: '127.0.0.1:1/helper',
    filesStartLimitMs: 20_000,
  })
  const files = await filesOf('data', broken)
  await assert.rejects(files.list('/'), refused('unavailable', /did not start: connection refused/))
  await waitUntil(() => filesPods().length === 0)
  await broken.close()
  const late = await open({ dir: `${fake.folder}/late`, filesStartLimitMs: 300 })
  fake.cluster.faults.refuse.push({ method: 'POST', status: 500 })
  await assert.rejects((await filesOf('data', late)).list('/'), refused('unavailable', /does not say why/))
  await late.close()
})

function refused(code: string, pattern: RegExp): (error: unknown) => boolean {
  return (error) => error instanceof Error && 'code' in error && error.code === code && pattern.test(error.message)
}

test('if the Pod dies, requests that run fail, and the next one gets another Pod', LIMIT, async () => {
  const files = await filesOf('data')
  await files.write('/file', contentFrom('old'))
  const upload = new PassThrough()
  const writing = files.write('/file', upload)
  upload.write('half')
  await waitUntil(async () =>
    (await readdir(folderOf('data'))).some((name) => name.startsWith('.sandyard-unfinished-')),
  )
  const [pod] = filesPods()
  assert.ok(pod)
  fake.cluster.cut()
  fake.cluster.drop(pod.metadata.name)
  await assert.rejects(writing, /ended early/)
  assert.equal(await textOf(files, '/file'), 'old')
  assert.notEqual(filesPods()[0]?.metadata.uid, pod.metadata.uid)
})

test('a Pod and an unfinished file that a killed worker left are deleted by the next one', LIMIT, async () => {
  await (await filesOf('data')).write('/file', contentFrom('kept'))
  const [pod] = filesPods()
  assert.ok(pod)
  const unfinished = join(folderOf('data'), `.sandyard-unfinished-${'0a'.repeat(16)}`)
  await writeFile(unfinished, 'half')
  await utimes(unfinished, 0, 0)
  const { labels = {} } = pod.metadata
  await driver.close()
  const left = { metadata: { name: 'sandyard-left', labels }, spec: pod.spec }
  const client = makeApiClient(fake.cluster.access)
  await client.request('POST', '/api/v1/namespaces/sandboxes/pods', left)
  client.close()
  driver = await open()
  await waitUntil(() => !fake.cluster.pods.has('sandyard-left'))
  assert.equal(await textOf(await filesOf('data'), '/file'), 'kept')
  await waitUntil(async () => !(await readdir(folderOf('data'))).includes(basename(unfinished)))
})

test('a claim of one Pod is served while no sandbox has it, and a sandbox takes it over', LIMIT, async () => {
  const files = await filesOf('data')
  await files.write('/file', contentFrom('x'))
  const claim = fake.cluster.claims.all.get('sandboxes/sandyard-volume-data')
  assert.ok(claim)
  claim.status.accessModes = ['ReadWriteOncePod']
  const run = runWith('data')
  await driver.start(run, NEVER)
  assert.deepEqual(filesPods(), [], 'the sandbox could not have started beside it')
  await assert.rejects(
    files.read('/file'),
    refused('volume_file_conflict', /ReadWriteOncePod allows one Pod at a time/),
  )
  await driver.remove(run.run_id)
})

test('a claim of one node is served on the node of the sandbox that has it', LIMIT, async () => {
  const run = runWith('data')
  await driver.start(run, NEVER)
  await (await filesOf('data')).write('/file', contentFrom('x'))
  const [pod] = filesPods()
  const matchFields = [{ key: 'metadata.name', operator: 'In', values: ['node'] }]
  assert.deepEqual(pod?.spec['affinity'], {
    nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: [{ matchFields }] } },
  })
})

test('a volume whose files were used is deleted at once', LIMIT, async () => {
  await (await filesOf('data')).write('/file', contentFrom('x'))
  const { org_id, volume_id } = runVolume('data')
  await driver.volumes?.remove({ org_id, volume_id })
  assert.equal(fake.cluster.claims.all.size, 0)
  assert.deepEqual(filesPods(), [])
})

test(
  'an organization has so many Pods for files and no more: one that is idle makes place, and others are waited for',
  LIMIT,
  async () => {
    const volumes = ['a', 'b', 'c', 'd']
    for (const name of volumes) await (await filesOf(name)).mkdir('/x')
    const first = filesPods().map(({ metadata }) => metadata.uid)
    assert.equal(first.length, 4)
    await (await filesOf('e')).mkdir('/x')
    const later = filesPods().map(({ metadata }) => metadata.uid)
    assert.equal(later.length, 4)
    assert.equal(later.includes(first[0] ?? ''), false, 'the one that was not used for the longest time is gone')
    const uploads = ['b', 'c', 'd', 'e'].map(async (name) => {
      const upload = new PassThrough()
      return { upload, writing: (await filesOf(name)).write('/slow', upload) }
    })
    const running = await Promise.all(uploads)
    await assert.rejects((await filesOf('a')).list('/'), refused('unavailable', /files of 4 other volumes are in use/))
    for (const { upload } of running) upload.end('done')
    await Promise.all(running.map(({ writing }) => writing))
    await (await filesOf('a')).list('/')
  },
)

test(
  'a namespace that is missing is made without space for sandboxes, and the plan of a start replaces that',
  LIMIT,
  async () => {
    const options = { dir: `${fake.folder}/organizations`, namespaceMode: 'organization' } as const
    const subject = await open(options)
    await (await filesOf('data', subject)).mkdir('/x')
    const pods = (): string | undefined => {
      const quota = fake.cluster.objects.get('/api/v1/namespaces/sandboxes-org/resourcequotas/sandyard')
      return (quota?.['spec'] as { hard: Record<string, string> } | undefined)?.hard['pods']
    }
    assert.equal(pods(), '4')
    assert.equal(filesPods()[0]?.metadata.labels?.['sandyard.dev/network'], 'none', 'no policy opens its network')
    const limits = { max_running: 3, max_vcpus_per_sandbox: null, max_memory_mib_per_sandbox: null }
    const run = { ...runWith('data'), org_limits: limits }
    await subject.start(run, NEVER)
    assert.equal(pods(), '7', 'those for files take no place of a sandbox')
    await (await filesOf('other', subject)).mkdir('/x')
    assert.equal(pods(), '7')
    await subject.remove(run.run_id)
    await subject.close()
  },
)

test('a capped volume is refused by name, and has no Pod', LIMIT, async () => {
  const files = await driver.volumes?.openFiles({ ...runVolume('data'), capacity_bytes: 1 })
  await assert.rejects(async () => files?.list('/'), refused('volume_file_conflict', /has a cap/))
  assert.deepEqual(filesPods(), [])
})
