import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { asId, type RunId, type VolumeId } from '../../src/domain/ids.ts'
import type { Mount, Patch } from '../../src/domain/spec/spec.ts'
import { systemClock } from '../../src/lib/clock.ts'
import type { AccessMode } from '../../src/worker/drivers/kubernetes/claim.ts'
import { makeApiClient, type ApiClient } from '../../src/worker/kubernetes/api-client.ts'
import { openKubernetesDriver, type TestDriver } from '../support/kubernetes-driver.ts'
import { applyObject, kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { bind } from '../support/mounts.ts'
import { HELPER_IMAGE, makeNodeVolume, makeRealNamespace, type RealNamespace } from '../support/real-kubernetes.ts'
import { MOUNT_OPTIONS, runScript, runWithVolume, VOLUME, VOLUME_KEY } from '../support/volume-runs.ts'
import { contentFrom, textOf } from '../worker/volumes/volume-folder.ts'

// Volumes as claims of a real cluster. These tests bring a folder of the node whose group the kubelet
// sets, as it does with the volumes of most drivers.

const skip = whyNoKubernetes()
const LIMIT = { skip, timeout: 90_000 }
const NEVER = new AbortController().signal
const CLASS = 'local'
const CLASS_OF_ONE_POD = 'local-one-pod'
let namespace: RealNamespace
let driver: TestDriver

before(async () => {
  if (skip !== false) return
  namespace = await makeRealNamespace('volumes')
  await makeClass(CLASS, 'ReadWriteOnce')
  driver = await open()
})
after(async () => {
  if (skip !== false) return
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
  await driver.close()
  await kubectl('delete', 'pv', CLASS, CLASS_OF_ONE_POD, '--ignore-not-found', '--wait=false')
  await namespace.remove()
})

/** Makes a class with one volume. */
async function makeClass(name: string, accessMode: AccessMode): Promise<void> {
  const api = { apiVersion: 'storage.k8s.io/v1', kind: 'StorageClass' }
  await applyObject({ ...api, metadata: { name }, provisioner: 'kubernetes.io/no-provisioner' })
  await makeNodeVolume(name, { accessMode, size: '2Gi' })
}

type Options = Parameters<typeof openKubernetesDriver>[0]
function options(storageClass = CLASS, mode: AccessMode = 'ReadWriteOnce'): Options {
  return {
    dir: join(namespace.folder, storageClass),
    access: namespace.access,
    helperImage: HELPER_IMAGE,
    claimSettings: { storageClass, mode, sizeGib: 1 },
  }
}
function open(...which: Parameters<typeof options>): Promise<TestDriver> {
  return openKubernetesDriver(options(...which))
}

const run = (id: RunId, script: string): Promise<string> => runScript(driver, id, script)

test('files of a volume outlive their sandbox and the worker, and are shared by sandboxes', LIMIT, async () => {
  const first = runWithVolume()
  await driver.start(first, NEVER)
  assert.equal(await run(first.run_id, 'echo kept >/data/file && cat /data/file'), 'kept\n')
  const second = runWithVolume({ options: { ...MOUNT_OPTIONS, readonly: true } }, '4321')
  await driver.start(second, NEVER)
  assert.equal(await run(second.run_id, 'cat /data/file; id -u'), 'kept\n4321\n')
  assert.equal(await run(second.run_id, 'touch /data/x 2>/dev/null || echo refused'), 'refused\n')
  await driver.remove(first.run_id)
  await driver.close()
  driver = await open()
  assert.equal(await run(second.run_id, 'cat /data/file'), 'kept\n')
  await driver.remove(second.run_id)
  const third = runWithVolume()
  await driver.start(third, NEVER)
  assert.equal(await run(third.run_id, 'cat /data/file'), 'kept\n')
  await driver.remove(third.run_id)
})

test(
  'clients use the files of a volume without a sandbox and beside one, as far as its group may',
  LIMIT,
  async (t) => {
    assert.ok(driver.volumes)
    const files = await driver.volumes.openFiles(VOLUME)
    const take = async (work: () => Promise<unknown>): Promise<number> => {
      const from = systemClock.monotonicMs()
      await work()
      return Math.round(systemClock.monotonicMs() - from)
    }
    const first = await take(() => files.write('/seed/one', contentFrom('1')))
    const rest: number[] = []
    for (let index = 0; index < 10; index += 1) rest.push(await take(() => files.stat('/seed/one')))
    t.diagnostic(`the first request took ${String(first)} ms, the next ones ${rest.join(', ')}`)
    const one = runWithVolume({}, '4321')
    await driver.start(one, NEVER)
    const script =
      'cat /data/seed/one; echo 2 >/data/two; umask 77; echo 3 >/data/own; ln -s /proc/self/environ /data/out'
    assert.equal(await run(one.run_id, script), '1')
    assert.equal(await textOf(files, '/two'), '2\n')
    const listed = (await files.list('/')).map(({ path, uid, gid }) => `${path} ${String(uid)} ${String(gid)}`)
    assert.deepEqual(
      listed.filter((line) => /own|seed|two|out/.test(line)),
      ['/own 4321 1000', '/seed 1000 1000', '/two 4321 1000'],
    )
    await assert.rejects(files.read('/own'), /belongs to another user, who keeps it from the group/)
    await assert.rejects(files.read('/out'), /through a symlink out of the volume/)
    await files.write('/two', contentFrom('new'))
    assert.equal(await run(one.run_id, 'cat /data/two; echo more >>/data/two && cat /data/two'), 'newnewmore\n')
    await driver.remove(one.run_id)
    const labels = 'sandyard.dev/volume-files=data'
    assert.match(await kubectl('-n', 'volumes', 'get', 'pods', '-l', labels, '-o', 'name'), /^pod\/[^\n]+\n$/)
    await driver.close()
    assert.equal(
      await kubectl('-n', 'volumes', 'get', 'pods', '-l', labels, '-o', 'name'),
      '',
      'it goes with the worker',
    )
    driver = await open()
  },
)

test(
  'a bind mount shows its path of the default volume alone, and a copy becomes a file of the sandbox',
  LIMIT,
  async () => {
    assert.ok(driver.volumes)
    const own = { ...VOLUME, kind: 'host', name: null } as const
    const files = await driver.volumes.openFiles(own)
    await files.write('/app/seed', contentFrom('seed'))
    await files.write('/secret', contentFrom('secret'))
    const plain = runWithVolume()
    const [named] = plain.spec.mounts
    assert.ok(named?.type === 'named')
    const mounts = [
      bind('/app', '/mnt/app'),
      bind('/app/seed', '/mnt/seed', { readonly: true }),
      bind('/new/below', '/mnt/new'),
    ]
    const patches = [{ type: 'copy_dir', src: '/app', dst: '/tmp/copied', replace: false }] as const
    const one = { ...plain, spec: { ...plain.spec, mounts, patches }, volumes: [own] }
    await driver.start(one, NEVER)
    const script =
      'cat /mnt/seed /tmp/copied/seed; ls /mnt/app /mnt/app/..; echo x 2>/dev/null >/mnt/seed || echo refused; echo new >/mnt/new/file; ln -s ../../.. /mnt/app/up; ln -s / /mnt/app/root'
    assert.equal(await run(one.run_id, script), 'seedseed/mnt/app:\nseed\n\n/mnt/app/..:\napp\nnew\nseed\nrefused\n')
    assert.equal(await textOf(files, '/new/below/file'), 'new\n')
    await driver.remove(one.run_id)
    for (const host of ['/app/up/etc', '/app/root/etc']) {
      const out = { ...runWithVolume(), volumes: [own] }
      const refused = { ...out, spec: { ...out.spec, mounts: [bind(host, '/mnt/out')] } }
      await assert.rejects(driver.start(refused, NEVER), /mounts\[0\]\.host .*out of the volume/)
      await driver.remove(refused.run_id)
    }
  },
)

test('a path that a sandbox swaps between the look and the mount leads nowhere out of the volume', LIMIT, async () => {
  const writer = runWithVolume()
  await driver.start(writer, NEVER)
  let swap = ''
  const plain = makeApiClient(namespace.access)
  const client: ApiClient = {
    ...plain,
    async request(method, path, body, options) {
      // The worker has looked at the path, and the kubelet doesn't know the Pod yet.
      if (method === 'POST' && JSON.stringify(body).includes('subPath')) await run(writer.run_id, swap)
      return await plain.request(method, path, body, options)
    },
  }
  const subject = await openKubernetesDriver({ ...options(), dir: join(namespace.folder, 'swapping'), client })
  const start = (): { readonly id: RunId; readonly started: Promise<void> } => {
    const any = runWithVolume()
    const spec = { ...any.spec, mounts: [bind('/swapped/below', '/mnt')] }
    const one = { ...any, spec, volumes: [{ ...VOLUME, kind: 'host', name: null } as const] }
    return { id: one.run_id, started: subject.start(one, NEVER) }
  }
  for (const target of ['/etc', '../../../../../../../../../etc']) {
    await run(writer.run_id, 'rm -rf /data/swapped; mkdir -p /data/swapped/below')
    swap = `rm -r /data/swapped && mkdir /data/swapped && ln -s ${target} /data/swapped/below`
    const { id, started } = start()
    await assert.rejects(started, /the container can't be made: .*subPath/)
    await subject.remove(id)
  }
  await run(
    writer.run_id,
    'rm -rf /data/swapped; mkdir -p /data/swapped/below /data/inside; echo own >/data/inside/file',
  )
  swap = 'rmdir /data/swapped/below && ln -s ../inside /data/swapped/below'
  const { id, started } = start()
  await started
  assert.equal(await runScript(subject, id, 'cat /mnt/file'), 'own\n')
  await subject.remove(id)
  await subject.close()
  await driver.remove(writer.run_id)
})

test('bind mounts and copies of a claim of one Pod follow each other at once, also after a client', LIMIT, async () => {
  await makeClass(CLASS_OF_ONE_POD, 'ReadWriteOncePod')
  const subject = await open(CLASS_OF_ONE_POD, 'ReadWriteOncePod')
  assert.ok(subject.volumes)
  const own = { ...VOLUME, kind: 'host', name: null, volume_id: asId<VolumeId>('one-pod') } as const
  const files = await subject.volumes.openFiles(own)
  await files.write('/app/seed', contentFrom('seed'))
  const runWith = (mounts: readonly Mount[], patches: readonly Patch[]) => {
    const plain = runWithVolume()
    return { ...plain, spec: { ...plain.spec, mounts, patches }, volumes: [own] }
  }
  const start = async (mounts: readonly Mount[], patches: readonly Patch[], script: string): Promise<string> => {
    const one = runWith(mounts, patches)
    await subject.start(one, NEVER)
    const output = await runScript(subject, one.run_id, script)
    if (mounts.length > 0)
      await assert.rejects(
        subject.start(runWith([bind('/app', '/mnt')], []), NEVER),
        /mode ReadWriteOncePod allows one/,
      )
    await subject.remove(one.run_id)
    return output
  }
  assert.equal(await start([bind('/app', '/mnt')], [], 'cat /mnt/seed; echo more >>/mnt/seed'), 'seed')
  const copy: Patch = { type: 'copy_dir', src: '/app', dst: '/tmp/copied', replace: false }
  assert.equal(await start([], [copy], 'cat /tmp/copied/seed'), 'seedmore\n')
  assert.equal(await start([bind('/app', '/mnt')], [], 'cat /mnt/seed'), 'seedmore\n')
  assert.equal(await textOf(files, '/app/seed'), 'seedmore\n')
  for (const { run_id } of await subject.list()) await subject.remove(run_id)
  await subject.volumes.remove(own)
  await subject.close()
})

test('a volume is deleted with its claim, and not while a Pod mounts it', LIMIT, async () => {
  assert.ok(driver.volumes)
  const { volumes } = driver
  assert.deepEqual(await volumes.measure(), [{ ...VOLUME_KEY, used_bytes: 2 * 1024 ** 3 }])
  const claim = ['-n', 'volumes', 'pvc/sandyard-volume-data'] as const
  assert.match(await kubectl('get', ...claim, '-o', 'jsonpath={.status.accessModes}'), /ReadWriteOnce/)
  const other = runWithVolume()
  await driver.start(other, NEVER)
  await assert.rejects(volumes.remove(VOLUME_KEY), /mounted by the Pod/)
  assert.equal(await kubectl('get', ...claim, '-o', 'jsonpath={.metadata.deletionTimestamp}'), '')
  await driver.remove(other.run_id)
  await volumes.remove(VOLUME_KEY)
  await assert.rejects(kubectl('get', ...claim), /NotFound/)
  assert.deepEqual(await volumes.measure(), [])
})
