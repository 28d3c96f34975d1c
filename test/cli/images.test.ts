import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, readdirSync, rmSync, utimesSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { readConfig } from '../../src/config.ts'
import { makeLog } from '../../src/lib/log.ts'
import { imagesFolder, ociFolder, openImages } from '../../src/cli/worker/worker-storage.ts'
import { pinImage } from '../../src/worker/drivers/oci/disk/pinned-image.ts'
import { runProgram } from '../support/program.ts'
import { makeTestImage, writeLayout } from '../support/test-image.ts'

test('image list, inspect and prune show sizes and what uses an image, and free what nothing uses', async (t) => {
  const root = mkdtempSync(join(tmpdir(), 'sandyard-images-'))
  t.after(() => {
    rmSync(root, { recursive: true })
  })
  const env = { SANDYARD_DATA_DIR: join(root, 'data') }
  const printed = async (line: string): Promise<string> => {
    const { code, output } = await runProgram(line.split(' '), env)
    assert.equal(code, 0, `${line}: ${output}`)
    return output
  }
  const rowOf = async (reference: string): Promise<readonly string[] | undefined> =>
    (await printed('image list'))
      .split('\n')
      .map((line) => line.split('\t'))
      .find(([name]) => name === reference)

  const base = [{ path: 'base', content: 'b'.repeat(3_000_000) }]
  await writeLayout(await makeTestImage({ layers: [base] }), join(root, 'base'))
  await writeLayout(
    await makeTestImage({ layers: [base, [{ path: 'app', content: 'a'.repeat(5_000_000) }]] }),
    join(root, 'app'),
  )
  await printed(`image load ${join(root, 'base')} localhost/base`)
  await printed(`image load ${join(root, 'app')} localhost/app`)
  const { code, output } = await runProgram(['image', 'inspect', 'localhost/none'], env)
  assert.equal(code, 1)
  assert.match(output, /there is no image 'localhost\/none' here/)

  const config = readConfig(env, {})
  const images = await openImages(config, makeLog('silent'))
  const app = await images.resolve('localhost/app', {
    org: 'org' as never,
    policy: 'never',
    auth: null,
    signal: new AbortController().signal,
  })
  for (const [folder, id] of [
    ['kept', 'a-sandbox'],
    ['snapshots', 'a-snapshot'],
    ['snapshots', 'another'],
  ] as const) {
    const at = join(ociFolder(config), 'disks', folder, id)
    mkdirSync(at, { recursive: true })
    pinImage(at, app, imagesFolder(config))
  }
  const [, size, , sandboxes, snapshots, digest] = (await rowOf('localhost/app:latest')) ?? []
  assert.deepEqual([size, sandboxes, snapshots, digest], ['8 MiB', '1', '2', app.digest])
  assert.deepEqual((await rowOf('localhost/base:latest'))?.slice(3, 5), ['0', '0'])
  const facts = JSON.parse(await printed('image inspect localhost/app')) as Record<string, unknown>
  assert.deepEqual([facts['sandboxes'], facts['snapshots']], [['a-sandbox'], ['a-snapshot', 'another']])
  assert.equal((facts['layers'] as readonly unknown[]).length, 2)

  assert.match(await printed('image prune --all'), /^0 layers were deleted\n$/, 'loaded images stay')
  assert.match(await printed('image remove localhost/app'), /; 0 layers were deleted/)
  assert.deepEqual((await rowOf('localhost/app (replaced)'))?.slice(3), ['1', '2', app.digest])
  rmSync(join(ociFolder(config), 'disks'), { recursive: true })
  assert.equal(await rowOf('localhost/app (replaced)'), undefined)
  assert.match(
    await printed('image prune'),
    /^0 layers were deleted/,
    'another process may be about to use a new layer',
  )
})

test('with the driver kubernetes, the same commands manage the images that are served to its cluster', async (t) => {
  const root = mkdtempSync(join(tmpdir(), 'sandyard-served-'))
  t.after(() => {
    rmSync(root, { recursive: true })
  })
  const env = { SANDYARD_DATA_DIR: join(root, 'data'), SANDYARD_DRIVER: 'kubernetes' }
  const run = (line: string): ReturnType<typeof runProgram> => runProgram(line.split(' '), env)
  const printed = async (line: string): Promise<string> => {
    const { code, output } = await run(line)
    assert.equal(code, 0, `${line}: ${output}`)
    return output
  }
  const rows = async (): Promise<readonly (readonly string[])[]> =>
    (await printed('image list')).split('\n').map((line) => line.split('\t'))
  const blobs = join(root, 'data/kubernetes/registry/images/blobs')

  const base = [{ path: 'base', content: 'b'.repeat(3_000_000) }]
  const image = await makeTestImage({ layers: [base], compression: 'plain' })
  await writeLayout(image, join(root, 'base'))
  assert.deepEqual(await rows(), [['REFERENCE', 'SIZE', 'LOADED', 'DIGEST'], ['']])
  assert.equal(await printed(`image load ${join(root, 'base')} localhost/base`), `localhost/base ${image.digest}\n`)
  const [, [reference, size, , digest] = []] = await rows()
  assert.deepEqual([reference, size, digest], ['localhost/base:latest', '3 MiB', image.digest])
  const facts = JSON.parse(await printed('image inspect localhost/base')) as Record<string, unknown>
  assert.equal(facts['origin'], 'loaded')
  assert.deepEqual(
    (facts['blobs'] as readonly { readonly digest: string }[]).map((blob) => blob.digest).toSorted(),
    [...image.blobs.keys()].toSorted(),
  )

  assert.equal(
    await printed('image remove localhost/base'),
    'localhost/base is removed; 0 files of images were deleted\n',
  )
  for (const line of ['image inspect localhost/base', 'image remove localhost/base']) {
    const { code, output } = await run(line)
    assert.equal(code, 1)
    assert.match(output, /there is no image 'localhost\/base' here/)
  }
  const past = new Date(Date.now() - 3_600_000)
  for (const blob of readdirSync(blobs)) utimesSync(join(blobs, blob), past, past)
  assert.equal(await printed('image prune'), '3 files of images were deleted\n')
  assert.deepEqual(readdirSync(blobs), [])
})
