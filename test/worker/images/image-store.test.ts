import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { systemClock } from '../../../src/lib/clock.ts'
import { runCommand } from '../../../src/lib/run-command.ts'
import { GC_GRACE_MS } from '../../../src/worker/images/layers/layer-store.ts'
import { startRegistry } from '../../support/registry.ts'
import { makeDockerArchive, makeLayerTar, makeTestImage, sha256, writeLayout } from '../../support/test-image.ts'
import { waitUntil } from '../../support/wait.ts'
import { makeFolder, NEEDS_ROOT, openStore, wanted } from './setup.ts'

const LAYERS = [[{ path: 'a', content: 'a' }], [{ path: 'b', content: 'b' }]]
const signal = AbortSignal.timeout(60_000)

test(
  'an OCI layout folder, its tar, its compressed tar and a docker archive load to the same layers',
  { skip: NEEDS_ROOT },
  async (t) => {
    const dir = await makeFolder(t)
    const image = await makeTestImage({ layers: LAYERS, config: { Cmd: ['x'] } })
    await writeLayout(image, join(dir, 'layout'))
    await runCommand('tar', ['-C', join(dir, 'layout'), '-cf', join(dir, 'oci.tar'), '.'], { timeoutMs: 10_000 })
    await writeFile(join(dir, 'oci.tar.gz'), gzipSync(await readFile(join(dir, 'oci.tar'))))
    await writeFile(join(dir, 'docker.tar'), await makeDockerArchive(image))
    const store = await openStore(join(dir, 'store'))
    const expected = {
      layout: image.digest,
      'oci.tar': image.digest,
      'oci.tar.gz': image.digest,
      'docker.tar': sha256(image.configuration),
    }
    const seen = new Set<string>()
    for (const [name, digest] of Object.entries(expected)) {
      const loaded = await store.load(join(dir, name), `localhost/${name.replaceAll('.', '-')}`, signal)
      assert.equal(loaded.digest, digest, name)
      assert.deepEqual(loaded.config.cmd, ['x'])
      seen.add(loaded.layers.join())
    }
    assert.equal(seen.size, 1)
    assert.equal((await store.list()).length, 4)
    assert.deepEqual((await store.resolve('localhost/layout', wanted({ policy: 'always' }))).layers.length, 2)
    assert.deepEqual(await readdir(join(dir, 'store/tmp')), [])
  },
)

test(
  'an archive without an image, with two images or with broken content is refused with a message',
  { skip: NEEDS_ROOT },
  async (t) => {
    const dir = await makeFolder(t)
    const store = await openStore(join(dir, 'store'))
    const image = await makeTestImage({ layers: LAYERS })
    await writeLayout(image, join(dir, 'changed'))
    await writeFile(join(dir, 'changed/blobs/sha256', (image.layerDigests[0] ?? '').slice(7)), 'changed')
    const archive = await makeDockerArchive(image)
    await writeFile(join(dir, 'cut.tar'), archive.subarray(0, archive.length - 3000))
    await writeFile(join(dir, 'other.tar'), await makeLayerTar([{ path: 'readme', content: 'no image' }]))
    await writeFile(join(dir, 'text'), 'no tar')
    const listed = { Config: 'c', Layers: [] }
    await writeFile(
      join(dir, 'two.tar'),
      await makeLayerTar([{ path: 'manifest.json', content: JSON.stringify([listed, listed]) }]),
    )
    for (const name of ['changed', 'cut.tar', 'other.tar', 'text', 'two.tar', 'missing']) {
      await assert.rejects(
        store.load(join(dir, name), 'localhost/x', signal),
        (error: Error) => 'reason' in error,
        name,
      )
    }
    assert.deepEqual([await store.list(), await readdir(join(dir, 'store/tmp'))], [[], []])
  },
)

test(
  'garbage collection deletes only layers that are unreferenced, unused and not recent',
  { skip: NEEDS_ROOT },
  async (t) => {
    const dir = await makeFolder(t)
    let laterMs = 0
    const clock = {
      ...systemClock,
      now: () => new Date(systemClock.now().getTime() + laterMs),
      monotonicMs: () => systemClock.monotonicMs() + laterMs,
    }
    const store = await openStore(join(dir, 'store'), { clock })
    await writeLayout(await makeTestImage({ layers: LAYERS }), join(dir, 'one'))
    await writeLayout(await makeTestImage({ layers: [LAYERS[0] ?? [], [{ path: 'c' }]] }), join(dir, 'two'))
    const one = await store.load(join(dir, 'one'), 'localhost/one', signal)
    const two = await store.load(join(dir, 'two'), 'localhost/two', signal)
    assert.equal(one.layers[0], two.layers[0])
    await store.remove('localhost/one')
    await store.remove('localhost/one')
    assert.equal(
      await store.collectGarbage(new Set()),
      0,
      'a resolved image is kept, because it may be about to be mounted',
    )
    laterMs = GC_GRACE_MS + 1_000
    assert.equal(await store.collectGarbage(new Set(one.layers)), 0)
    assert.equal(await store.collectGarbage(new Set()), 1)
    assert.deepEqual((await store.resolve('localhost/two', wanted())).layers, two.layers)
    assert.equal((await readdir(join(dir, 'store/layers'))).length, 2)
    await store.load(join(dir, 'one'), 'localhost/one', signal)
  },
)

test('a layer that occurs twice is listed once, at its upper position', { skip: NEEDS_ROOT }, async (t) => {
  const dir = await makeFolder(t)
  const [a = [], b = []] = LAYERS
  const image = await makeTestImage({ layers: [a, b, a] })
  await writeLayout(image, join(dir, 'layout'))
  const loaded = await (await openStore(join(dir, 'store'))).load(join(dir, 'layout'), 'localhost/x', signal)
  assert.deepEqual(
    loaded.layers.map((path) => path.slice(-32)),
    [image.diffIds[1], image.diffIds[2]].map((id) => id?.slice(7, 39)),
  )
})

test('a store in a folder that overlay options cannot name is refused at once', async (t) => {
  const dir = await makeFolder(t)
  for (const name of ['a:b', 'a,b', 'a b'])
    await assert.rejects(openStore(join(dir, name)), /overlay mounts need a path/)
})

test(
  'a worker that is killed while it unpacks leaves no incomplete layer, and the next worker cleans up and pulls again',
  { skip: NEEDS_ROOT },
  async (t) => {
    const registry = await startRegistry()
    t.after(() => registry.close())
    const files = Array.from({ length: 300 }, (_, index) => ({ path: `f${String(index)}`, content: 'x'.repeat(2_000) }))
    registry.push('big', '1', await makeTestImage({ layers: [files], compression: 'plain' }))
    const dir = join(await makeFolder(t), 'store')
    const folders = (): Promise<readonly string[]> => readdir(join(dir, 'tmp')).catch((): string[] => [])
    for (let round = 0; round < 3; round++) {
      const before = await folders()
      registry.inject({ kind: 'stall', ms: 20_000 }, 1)
      const child = fork(new URL('./pull-once.ts', import.meta.url), [dir, `${registry.address}/big:1`])
      const isUnpacking = async (): Promise<boolean> => {
        const own = (await folders()).filter((name) => !before.includes(name))
        const inside = await Promise.all(own.map((name) => readdir(join(dir, 'tmp', name))))
        return inside.some((entries) => entries.length > 50)
      }
      await waitUntil(isUnpacking)
      child.kill('SIGKILL')
      await once(child, 'exit')
      assert.deepEqual(await readdir(join(dir, 'layers')), [])
    }
    await mkdir(join(dir, 'tmp', '1-0-leftover'))
    const store = await openStore(dir)
    assert.deepEqual([await readdir(join(dir, 'tmp')), await store.list()], [[], []])
    const image = await store.resolve(`${registry.address}/big:1`, wanted())
    assert.equal((await stat(join(image.layers[0] ?? '', 'f299'))).size, 2_000)
  },
)

test('unfinished work of a process that is alive is not deleted', { skip: NEEDS_ROOT }, async (t) => {
  const registry = await startRegistry()
  t.after(() => registry.close())
  registry.push('a', '1', await makeTestImage({ layers: LAYERS }))
  const dir = join(await makeFolder(t), 'store')
  const first = await openStore(dir)
  registry.inject({ kind: 'stall', ms: 200 }, 2)
  const pulling = first.resolve(`${registry.address}/a:1`, wanted())
  const second = await openStore(dir)
  const [one, two] = await Promise.all([pulling, second.resolve(`${registry.address}/a:1`, wanted())])
  assert.deepEqual(one.layers, two.layers)
})
