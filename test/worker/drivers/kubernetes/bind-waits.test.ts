import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { after, afterEach, before, beforeEach, test } from 'node:test'
import type { VolumeFiles } from '../../../../src/contract/volumes/volume-protocol.ts'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { Mount, Patch } from '../../../../src/domain/spec/spec.ts'
import type { ClaimSettings } from '../../../../src/worker/drivers/kubernetes/claim.ts'
import { StartError } from '../../../../src/worker/start-error.ts'
import { makeDesiredRun, runVolume } from '../../../support/desired-run.ts'
import type { FakePod } from '../../../support/fake-kubernetes.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { bind } from '../../../support/mounts.ts'
import { waitUntil } from '../../../support/wait.ts'
import { contentFrom, textOf } from '../../volumes/volume-folder.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

// What starts wait for that look at paths of the default volume, or copy out of it: the Pod for files, and the claim.

const NEVER = new AbortController().signal
const LIMIT = { timeout: 60_000 }
const SETTINGS: ClaimSettings = { storageClass: 'folders', mode: 'ReadWriteOnce', sizeGib: 2 }
const OF_ONE_POD: ClaimSettings = { ...SETTINGS, mode: 'ReadWriteOncePod' }
const IN_USE = /the volume( 'default')? is in use, and its mode ReadWriteOncePod allows/
const NEVER_PULLED = '127.0.0.1:3/helper:1'
let fake: FakeKubernetes
let driver: TestDriver | null = null
let opened = 0

before(async () => {
  fake = await makeFakeKubernetes()
})
after(() => fake.remove())
beforeEach(() => rm(inVolume(''), { recursive: true, force: true }))
afterEach(async () => {
  for (const { run_id } of (await driver?.list()) ?? []) await driver?.remove(run_id)
  await driver?.close()
  fake.cluster.claims.all.clear()
})

async function open(options: Parameters<FakeKubernetes['open']>[0] = {}): Promise<TestDriver> {
  opened += 1
  driver = await fake.open({ dir: join(fake.folder, `driver-${String(opened)}`), claimSettings: SETTINGS, ...options })
  return driver
}

function runWith(mounts: readonly Mount[], patches: readonly Patch[] = []): DesiredRun {
  return { ...makeDesiredRun({ ...POD_SPEC, mounts, patches }), volumes: [runVolume(null)] }
}

function filesOf({ volumes }: TestDriver, name: string | null = null): Promise<VolumeFiles> {
  assert.ok(volumes)
  return volumes.openFiles(runVolume(name))
}

function filesPods(): readonly FakePod[] {
  return [...fake.cluster.pods.values()].filter(({ metadata }) => metadata.labels?.['sandyard.dev/volume-files'])
}

/** Where the fake has a path of the default volume. */
function inVolume(path: string): string {
  return join(fake.folder, 'volumes/sandboxes/sandyard-volume-host', path)
}

function failed(reason: string, pattern: RegExp): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof StartError, String(error))
    assert.match(error.message, pattern)
    assert.equal(error.reason, reason)
    return true
  }
}

test('bind mounts and copies of a claim of one Pod follow each other at once, also after clients', LIMIT, async () => {
  const subject = await open({ claimSettings: OF_ONE_POD })
  const files = await filesOf(subject)
  await files.write('/app/file', contentFrom('kept'))
  const copied = join(fake.folder, 'copied')
  const copy: Patch = { type: 'copy_file', src: '/app/file', dst: copied, mode: null, replace: true }
  for (const [mounts, patches] of [[[bind('/app', '/mnt')]], [[], [copy]], [[bind('/new', '/mnt')]]] as const) {
    const run = runWith(mounts, patches)
    await subject.start(run, NEVER)
    if (mounts.length > 0) {
      assert.deepEqual(filesPods(), [], 'the sandbox could not have started beside it')
      await assert.rejects(subject.start(runWith([bind('/app', '/mnt')]), NEVER), failed('mount', IN_USE))
      await assert.rejects(subject.start(runWith([], [copy]), NEVER), failed('patch', IN_USE))
      await assert.rejects(files.read('/app/file'), IN_USE)
    }
    await subject.remove(run.run_id)
    assert.equal(await textOf(files, '/app/file'), 'kept')
  }
  assert.equal(await readFile(copied, 'utf8'), 'kept')
})

test('of two starts at once, one gets a claim of one Pod, and the other is refused', LIMIT, async () => {
  const subject = await open({ claimSettings: OF_ONE_POD })
  const runs = [runWith([bind('/a', '/mnt')]), runWith([bind('/b', '/mnt')])]
  const results = await Promise.allSettled(runs.map((run) => subject.start(run, NEVER)))
  const reasons = results.flatMap((result) => (result.status === 'rejected' ? [result.reason as unknown] : []))
  assert.equal(reasons.length, 1, String(reasons))
  failed('mount', /allows one (Pod |sandbox )?at a time/)(reasons[0])
})

/** Starts a sandbox that waits for a Pod for files, which is never ready. `cancel` cancels it, and resolves once it was refused. */
async function startThatWaits(subject: TestDriver): Promise<{ readonly cancel: () => Promise<void> }> {
  const abort = new AbortController()
  const started = subject.start(runWith([bind('/never', '/mnt')]), abort.signal)
  const refused = assert.rejects(started, failed('cancelled', /cancelled/))
  await waitUntil(() => filesPods().length === 1)
  return {
    cancel() {
      abort.abort(new Error('test'))
      return refused
    },
  }
}

test('a start that is cancelled while it looks at a path makes no folder, and leaves no Pod', LIMIT, async () => {
  const subject = await open({ helperImage: NEVER_PULLED })
  const start = await startThatWaits(subject)
  await start.cancel()
  await waitUntil(() => filesPods().length === 0)
  assert.equal(existsSync(inVolume('never')), false)
})

/** Lets the Pod for files run, whose image never comes. */
function letRun({ metadata: { name }, spec }: FakePod): void {
  spec['nodeName'] = 'node'
  const state = { running: { startedAt: '2026-01-01T00:00:00Z' } }
  fake.cluster.setStatus(name, { phase: 'Running', containerStatuses: [{ name: 'files', state }] })
}

test('a start that is cancelled leaves the Pod for files to a client that waits for it, too', LIMIT, async () => {
  const subject = await open({ helperImage: NEVER_PULLED })
  const start = await startThatWaits(subject)
  const found = (await filesOf(subject)).exists('/never')
  await start.cancel()
  filesPods().forEach(letRun)
  assert.equal(await found, false)
})

test('a look at a path may take as long as the start, and longer than the request of a client', LIMIT, async () => {
  const subject = await open({ helperImage: NEVER_PULLED, filesStartLimitMs: 300 })
  const started = subject.start(runWith([bind('/made', '/mnt')]), NEVER)
  await waitUntil(() => filesPods().length === 1)
  await assert.rejects((await filesOf(subject)).list('/'), /did not start/)
  filesPods().forEach(letRun)
  await started
  assert.ok(existsSync(inVolume('made')))
})

test('a look that takes longer than the start may is named as the reason of the failure', LIMIT, async () => {
  const subject = await open({ helperImage: NEVER_PULLED, startLimitMs: 500 })
  const started = subject.start(runWith([bind('/never', '/mnt')]), NEVER)
  await assert.rejects(started, failed('mount', /^mounts\[0\]\.host '\/never': the Pod that serves the files/))
  await waitUntil(() => filesPods().length === 0)
})

test('starts wait until the files of other volumes are no longer in use', LIMIT, async () => {
  const subject = await open()
  const uploads = ['a', 'b', 'c', 'd'].map(async (name) => {
    const upload = new PassThrough()
    upload.write('half')
    return { upload, writing: (await filesOf(subject, name)).write('/slow', upload) }
  })
  const running = await Promise.all(uploads)
  await waitUntil(() => filesPods().length === 4)
  const cancelled = new AbortController()
  await mkdir(inVolume(''), { recursive: true })
  await writeFile(inVolume('file'), 'copied')
  const copied = join(fake.folder, 'copied-late')
  const copy: Patch = { type: 'copy_file', src: '/file', dst: copied, mode: null, replace: false }
  const starts = [runWith([bind('/late', '/mnt')]), runWith([], [copy])].map((run) => subject.start(run, NEVER))
  const refused = subject.start(runWith([bind('/never', '/mnt')]), cancelled.signal)
  await waitUntil(async () => (await subject.list()).filter(({ phase }) => phase === 'starting').length === 3)
  await assert.rejects((await filesOf(subject)).list('/'), /files of 4 other volumes are in use/)
  cancelled.abort(new Error('test'))
  await assert.rejects(refused, failed('cancelled', /cancelled/))
  for (const { upload } of running) upload.end('done')
  await Promise.all([...starts, ...running.map(({ writing }) => writing)])
  assert.ok(existsSync(inVolume('late')))
  assert.equal(await readFile(copied, 'utf8'), 'copied')
  assert.equal(existsSync(inVolume('never')), false)
})
