import assert from 'node:assert/strict'
import { lstat, mkdir, mkdtemp, readFile, readlink, rm, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, afterEach, before, beforeEach, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { Patch, SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import { requiredAbilities } from '../../../../src/domain/spec/required-abilities.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { waitUntil } from '../../../support/wait.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

// The fake runs sandboxes as processes of this machine, so all paths here are within a folder of the test.

const NEVER = new AbortController().signal
const { runtime } = DEFAULT_SPEC_FOR_TESTS
let fake: FakeKubernetes
let driver: TestDriver
let root = ''

before(async () => {
  fake = await makeFakeKubernetes()
  driver = await fake.open()
})
after(async () => {
  await driver.close()
  await fake.remove()
})
beforeEach(async () => {
  root = await mkdtemp(join(fake.folder, 'root-'))
})
afterEach(async () => {
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
  await rm(root, { recursive: true })
})

const text = (path: string, content: string, more: object = {}): Patch => ({
  type: 'text',
  path: join(root, path),
  content,
  mode: null,
  replace: false,
  ...more,
})

function runWith(patches: readonly Patch[], more: Partial<SandboxSpec> = {}): DesiredRun {
  return makeDesiredRun({ ...POD_SPEC, patches, ...more })
}

async function modeOf(path: string): Promise<number> {
  return (await lstat(join(root, path))).mode & 0o7777
}

test('patches of every kind are in place, in their order, when a start resolves', async () => {
  await writeFile(join(root, 'old'), 'old')
  await mkdir(join(root, 'tree/deep'), { recursive: true })
  await symlink('old', join(root, 'link'))
  const run = runWith([
    text('a/b/text', 'hello'),
    text('old', 'new', { replace: true, mode: 0o600 }),
    {
      type: 'file',
      path: join(root, 'bytes'),
      content: Buffer.from([0, 255]).toString('base64'),
      mode: 0o755,
      replace: false,
    },
    { type: 'append', path: join(root, 'a/b/text'), content: ' you' },
    { type: 'append', path: join(root, 'fresh'), content: 'made' },
    { type: 'mkdir', path: join(root, 'folder/inner'), mode: 0o711 },
    { type: 'symlink', target: 'bytes', link: join(root, 'link'), replace: true },
    { type: 'remove', path: join(root, 'tree') },
    { type: 'remove', path: join(root, 'never/was') },
  ])
  await driver.start(run, NEVER)
  assert.equal(await readFile(join(root, 'a/b/text'), 'utf8'), 'hello you')
  assert.equal(await modeOf('a/b/text'), 0o644)
  assert.equal(await readFile(join(root, 'old'), 'utf8'), 'new')
  assert.equal(await modeOf('old'), 0o600)
  assert.deepEqual([...(await readFile(join(root, 'bytes')))], [0, 255])
  assert.equal(await modeOf('bytes'), 0o755)
  assert.equal(await readFile(join(root, 'fresh'), 'utf8'), 'made')
  assert.equal(await modeOf('folder/inner'), 0o711)
  assert.equal(await readlink(join(root, 'link')), 'bytes')
  await assert.rejects(lstat(join(root, 'tree')))
})

test('a workload begins after its patches', async () => {
  const cmd = ['sh', '-c', `cat ${join(root, 'script')} && exit 5`]
  const run = runWith([text('script', 'ready')], { runtime: { ...runtime, entrypoint: [], cmd } })
  await driver.start(run, NEVER)
  await waitUntil(async () => (await driver.list())[0]?.phase === 'ended')
  assert.deepEqual((await driver.list())[0]?.outcome, { kind: 'exited', code: 5 })
})

test('a workload that ends at once, and with it the processes that let it begin, is no failed start', async () => {
  for (let at = 0; at < 10; at += 1) {
    const run = runWith([text(`file-${String(at)}`, '')], { runtime: { ...runtime, entrypoint: [], cmd: ['true'] } })
    await driver.start(run, NEVER)
    await driver.remove(run.run_id)
  }
})

test('a patch that can not be applied ends the start by name, and its workload never begins', async () => {
  await writeFile(join(root, 'there'), 'kept')
  await mkdir(join(root, 'folder'))
  const refused = async (patch: Patch, pattern: RegExp, more: Partial<SandboxSpec> = {}): Promise<void> => {
    const run = runWith([patch], more)
    await assert.rejects(
      driver.start(run, NEVER),
      (error) => error instanceof StartError && error.reason === 'patch' && pattern.test(error.message),
    )
    await driver.remove(run.run_id)
  }
  await refused(text('there', 'lost'), /^patch 0 \(text\): open: File exists .*there$/)
  assert.equal(await readFile(join(root, 'there'), 'utf8'), 'kept')
  await refused(text('folder', 'lost', { replace: true }), /^patch 0 \(text\): remove: Is a directory/)
  await refused(text('there/below', 'lost'), /^patch 0 \(text\): mkdir: /)
  const marker = join(root, 'began')
  const workload = { ...runtime, entrypoint: [], cmd: ['touch', marker] }
  await refused(text('there', 'lost'), /File exists/, { runtime: workload })
  await assert.rejects(lstat(marker))
})

test('patches that a Pod can not have are refused by their field, and copies need the default volume', async () => {
  const run = runWith([text('x', '')], { runtime: { ...runtime, entrypoint: null, cmd: ['true'] } })
  await assert.rejects(driver.start(run, NEVER), /patches with runtime\.cmd also need runtime\.entrypoint/)
  const copies: readonly Patch[] = [
    text('x', ''),
    { type: 'copy_file', src: '/a', dst: '/b', mode: null, replace: false },
    { type: 'copy_dir', src: '/a', dst: '/b', replace: false },
  ]
  const found = requiredAbilities({ ...DEFAULT_SPEC_FOR_TESTS, image: 'local/box', patches: copies })
  assert.deepEqual(
    found.filter(({ ability }) => ability === 'bind_mounts').map(({ field }) => field),
    ['patches[1]', 'patches[2]'],
  )
})
