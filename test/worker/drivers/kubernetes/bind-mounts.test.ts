import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { symlinkSync } from 'node:fs'
import { chmod, lstat, mkdir, mkdtemp, readFile, readlink, rm, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, afterEach, before, beforeEach, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { BindMount, Patch, SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import type { ClaimSettings } from '../../../../src/worker/drivers/kubernetes/claim.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import { makeDesiredRun, runVolume } from '../../../support/desired-run.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

// The organization's default volume as a claim: bind mounts of its paths, and copies out of it. The fake runs sandboxes as processes of
// this machine and mounts nothing, so test/kubernetes/volumes.test.ts shows what a sandbox sees.

const NEVER = new AbortController().signal
const LIMIT = { timeout: 60_000 }
const SETTINGS: ClaimSettings = { storageClass: 'folders', mode: 'ReadWriteOnce', sizeGib: 2 }
const OPTIONS = { readonly: false, noexec: false, nosuid: false, nodev: false }
let fake: FakeKubernetes
let driver: TestDriver
/** Where the fake has the default volume. */
let volume = ''
/** What the sandbox's patches write to. */
let root = ''

before(async () => {
  fake = await makeFakeKubernetes()
  driver = await fake.open({ claimSettings: SETTINGS })
  volume = join(fake.folder, 'volumes/sandboxes/sandyard-volume-host')
})
after(async () => {
  await driver.close()
  await fake.remove()
})
beforeEach(async () => {
  await mkdir(volume, { recursive: true })
  root = await mkdtemp(join(fake.folder, 'root-'))
})
afterEach(async () => {
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
  await Promise.all([rm(root, { recursive: true }), rm(volume, { recursive: true })])
})

function bind(host: string, more: Partial<BindMount> = {}): BindMount {
  const kinds = { stat_virtualization: 'strict', host_permissions: 'private' } as const
  return { type: 'bind', host, guest: '/mnt', options: OPTIONS, ...kinds, quota_mib: null, ...more }
}

function runWith(spec: Partial<SandboxSpec>): DesiredRun {
  return { ...makeDesiredRun({ ...POD_SPEC, ...spec }), volumes: [runVolume(null)] }
}

function mountsOf({ run_id }: DesiredRun): readonly object[] {
  const pod = fake.cluster.pods.get(`sandyard-${run_id}`)
  assert.ok(pod)
  const containers = pod.spec.containers as readonly {
    readonly name: string
    readonly volumeMounts: readonly { readonly name: string }[]
  }[]
  const sandbox = containers.find(({ name }) => name === 'sandbox')
  return (sandbox?.volumeMounts ?? []).filter(({ name }) => name.startsWith('volume'))
}

async function assertRefused(spec: Partial<SandboxSpec>, reason: string, pattern: RegExp): Promise<void> {
  const run = runWith(spec)
  await assert.rejects(driver.start(run, NEVER), (error) => {
    assert.ok(error instanceof StartError)
    assert.equal(error.reason, reason)
    assert.match(error.message, pattern)
    return true
  })
  await driver.remove(run.run_id)
}

test(
  'a bind mount is a path of the claim of the default volume, and makes a folder that is missing',
  LIMIT,
  async () => {
    await writeFile(join(volume, 'file'), 'x')
    const run = runWith({
      mounts: [
        bind('/app/data'),
        bind('/file', { guest: '/mnt-file', options: { ...OPTIONS, readonly: true } }),
        bind('/', { guest: '/mnt-all' }),
      ],
    })
    await driver.start(run, NEVER)
    assert.deepEqual(mountsOf(run), [
      { name: 'volume-0', mountPath: '/mnt', readOnly: false, subPath: 'app/data' },
      { name: 'volume-0', mountPath: '/mnt-file', readOnly: true, subPath: 'file' },
      { name: 'volume-0', mountPath: '/mnt-all', readOnly: false },
    ])
    assert.ok((await lstat(join(volume, 'app/data'))).isDirectory())
    assert.ok((await driver.probe()).report.abilities.includes('bind_mounts'))
  },
)

test(
  'a path of a bind mount that leads out of the volume is refused by its field, and makes no Pod',
  LIMIT,
  async () => {
    await symlink('/etc', join(volume, 'out'))
    await symlink('../../..', join(volume, 'up'))
    await assertRefused({ mounts: [bind('/out')] }, 'mount', /^mounts\[0\]\.host '\/out': .*symlink out of the volume/)
    await assertRefused({ mounts: [bind('/up/etc')] }, 'mount', /^mounts\[0\]\.host '\/up\/etc': /)
    await assertRefused({ mounts: [bind('/a/../../b')] }, 'mount', /^mounts\[0\]\.host '\/a\/\.\.\/\.\.\/b': /)
    const runs = [...fake.cluster.pods.values()].filter(({ metadata }) => metadata.labels?.['sandyard.dev/run'])
    assert.deepEqual(runs, [])
  },
)

test('copy_file and copy_dir copy out of the default volume, with modes and in their order', LIMIT, async () => {
  await mkdir(join(volume, 'tree/deep'), { recursive: true })
  await writeFile(join(volume, 'tree/deep/large'), Buffer.alloc(3_000_000, 'x'))
  await writeFile(join(volume, 'tree/run'), 'run')
  await chmod(join(volume, 'tree/run'), 0o755)
  await symlink('/etc/passwd', join(volume, 'tree/passwd'))
  await symlink('..', join(volume, 'tree/deep/up'))
  const at = (path: string): string => join(root, path)
  const patches: readonly Patch[] = [
    { type: 'copy_file', src: '/tree/run', dst: at('one'), mode: null, replace: false },
    { type: 'copy_file', src: '/tree/run', dst: at('below/two'), mode: 0o600, replace: false },
    { type: 'copy_dir', src: '/tree', dst: at('tree'), replace: false },
    { type: 'append', path: at('tree/run'), content: ' more' },
  ]
  await driver.start(runWith({ patches }), NEVER)
  const modeOf = async (path: string): Promise<number> => (await lstat(at(path))).mode & 0o777
  assert.deepEqual(await Promise.all(['one', 'below/two', 'tree/run'].map(modeOf)), [0o755, 0o600, 0o755])
  assert.equal(await readFile(at('tree/run'), 'utf8'), 'run more')
  assert.deepEqual(await Promise.all([readlink(at('tree/passwd')), readlink(at('tree/deep/up'))]), [
    '/etc/passwd',
    '..',
  ])
  assert.equal((await readFile(at('tree/deep/large'))).compare(Buffer.alloc(3_000_000, 'x')), 0)
})

test('a copy that can’t be made ends the start by the patch and the path', LIMIT, async () => {
  await mkdir(join(volume, 'links'))
  await symlink('/etc/passwd', join(volume, 'links/passwd'))
  await writeFile(join(root, 'there'), 'kept')
  const file = (src: string, dst: string): Patch => ({ type: 'copy_file', src, dst: join(root, dst), mode: null, replace: false }) // prettier-ignore
  const folder = (src: string, dst: string): Patch => ({ type: 'copy_dir', src, dst: join(root, dst), replace: false })
  await assertRefused({ patches: [file('/missing', 'a')] }, 'patch', /^patch 0 \(copy_file\): .*missing/)
  await assertRefused({ patches: [file('/links', 'a')] }, 'patch', /^patch 0 \(copy_file\): '\/links' is not a file/)
  await assertRefused({ patches: [file('/links/passwd', 'a')] }, 'patch', /'\/links\/passwd' does not exist/)
  await assertRefused({ patches: [folder('/links', 'there')] }, 'patch', /^patch 0 \(copy_dir\): '.*there' exists/)
  assert.equal(await readFile(join(root, 'there'), 'utf8'), 'kept')
})

test('a folder full of symlinks is refused before the worker has read them all', { timeout: 180_000 }, async () => {
  const fill = async (folder: string, count: number, target: string): Promise<void> => {
    await mkdir(join(volume, folder))
    for (let index = 0; index < count; index += 1) symlinkSync(target, join(volume, folder, String(index)))
  }
  await fill('many', 100_001, 'x')
  await fill('long', 1_100, 'x'.repeat(4_000))
  const copy = (src: string): Patch => ({ type: 'copy_dir', src, dst: join(root, 'copied'), replace: true })
  await assertRefused({ patches: [copy('/many')] }, 'patch', /'\/many' holds more than 100000 symlinks/)
  await assertRefused({ patches: [copy('/long')] }, 'patch', /'\/long' holds too much for one answer/)
})

test('a folder with what a sandbox can’t have a copy of is refused by the name of that', LIMIT, async () => {
  const copyOf = async (folder: string, fill: (path: Buffer) => unknown, pattern: RegExp): Promise<void> => {
    const at = join(volume, folder, 'below')
    await mkdir(at, { recursive: true })
    await writeFile(join(at, 'plain'), 'x')
    await fill(Buffer.from(`${at}/`))
    const patches = [{ type: 'copy_dir', src: `/${folder}`, dst: join(root, folder), replace: false }] as const
    await assertRefused({ patches }, 'patch', pattern)
  }
  const notUtf8 = (path: Buffer): Buffer => Buffer.concat([path, Buffer.from([0x61, 0xff])])
  const isSpecial = /^patch 0 \(copy_dir\): 'pipe' is neither file, folder nor symlink/
  await copyOf('special', (path) => execFileSync('mkfifo', [`${path.toString()}pipe`]), isSpecial)
  const isNot = /'a\ufffd' in '\/\w+\/below' has a name that is not UTF-8/
  await copyOf('file', (path) => writeFile(notUtf8(path), 'x'), isNot)
  await copyOf('folder', (path) => mkdir(notUtf8(path)), isNot)
  await copyOf('link', (path) => symlink('plain', notUtf8(path)), isNot)
  const target = (path: Buffer): unknown =>
    symlink(notUtf8(Buffer.from('')), Buffer.concat([path, Buffer.from('link')]))
  await copyOf('target', target, /the target of the symlink 'link' is not UTF-8/)
})
