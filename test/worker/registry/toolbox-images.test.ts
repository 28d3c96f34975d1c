import assert from 'node:assert/strict'
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { test, type TestContext } from 'node:test'
import { extract } from 'tar-stream'
import { READ_OPTIONS } from '../../../src/worker/images/layers/tar-streams.ts'
import type { LoadedImages } from '../../../src/worker/registry/loaded-images.ts'
import { makeToolboxImages, type ToolboxImages } from '../../../src/worker/registry/toolbox-images.ts'
import { openToolboxLayer } from '../../../src/worker/registry/toolbox-layer.ts'
import { makeTestImage, sha256, type TestImage } from '../../support/test-image.ts'
import { makeFolder } from '../images/setup.ts'
import { openWorld, type World } from './registry-world.ts'

// Loaded images with the toolbox as their last layer, as a kubelet pulls them.

const TOOLS = [
  { name: 'perl', content: Buffer.from('perl'), mode: 0o755 },
  { name: 'agent.pl', content: Buffer.from('agent'), mode: 0o644 },
]
const LAYERS = [[{ path: 'file', content: 'content' }], [{ path: 'top', content: 'top' }]]
const REPOSITORY = '/v2/localhost/demo'

type Manifest = {
  readonly mediaType: string
  readonly annotations?: object
  readonly config: { readonly digest: string; readonly size: number }
  readonly layers: readonly { readonly mediaType: string; readonly digest: string; readonly size: number }[]
}

async function openWithToolbox(t: TestContext): Promise<World & { readonly toolbox: ToolboxImages }> {
  const folder = await makeFolder(t)
  const layer = await openToolboxLayer(join(folder, 'toolbox.tar'), TOOLS)
  const made: ToolboxImages[] = []
  const world = await openWorld(t, {}, Number.POSITIVE_INFINITY, (images: LoadedImages) => {
    made.push(makeToolboxImages(images, layer))
    return made[0] ?? images
  })
  const [toolbox] = made
  assert.ok(toolbox)
  return { ...world, toolbox }
}

/** Pulls an image as a node does: by its digest, each blob compared with its descriptor. */
async function pull({ ask }: World, digest: string) {
  const { status, headers, body } = await ask(`${REPOSITORY}/manifests/${digest}`)
  assert.deepEqual([status, sha256(body), headers['docker-content-digest']], [200, digest, digest])
  const manifest = JSON.parse(body.toString('utf8')) as Manifest
  assert.equal(headers['content-type'], manifest.mediaType)
  const contents: Buffer[] = []
  for (const { digest: of, size } of [manifest.config, ...manifest.layers]) {
    const blob = await ask(`${REPOSITORY}/blobs/${of}`)
    assert.deepEqual([blob.status, sha256(blob.body), blob.body.length], [200, of, size])
    contents.push(blob.body)
  }
  const [configuration = Buffer.alloc(0), ...layers] = contents
  return { manifest, layers, configuration: JSON.parse(configuration.toString('utf8')) as Record<string, unknown> }
}

test('an image is pulled with the toolbox on top by a digest of its own, and without it by its tag', async (t) => {
  const world = await openWithToolbox(t)
  const image = await makeTestImage({ layers: LAYERS, config: { Cmd: ['/bin/sh'], Env: ['A=b'] } })
  await world.load(image, 'localhost/demo')
  const digest = await world.toolbox.digestWith(image.digest)
  const { manifest, configuration, layers } = await pull(world, digest)
  const top = layers.at(-1) ?? Buffer.alloc(0)
  assert.deepEqual(
    manifest.layers.map((layer) => layer.digest),
    [...image.layerDigests, sha256(top)],
  )
  assert.equal(manifest.layers.at(-1)?.mediaType, 'application/vnd.oci.image.layer.v1.tar')
  const own = JSON.parse(image.configuration.toString('utf8')) as object
  assert.deepEqual(configuration, { ...own, rootfs: { type: 'layers', diff_ids: [...image.diffIds, sha256(top)] } })
  assert.equal(sha256((await world.ask(`${REPOSITORY}/manifests/latest`)).body), image.digest)
  assert.deepEqual(
    [world.toolbox.digestWithout(digest), world.toolbox.digestWithout(image.digest)],
    [image.digest, null],
  )
})

test('the layer hides what an image has in the folder, belongs to root, and nobody else may write to it', async (t) => {
  const world = await openWithToolbox(t)
  const image = await makeTestImage({ layers: LAYERS })
  await world.load(image, 'localhost/demo')
  const { layers } = await pull(world, await world.toolbox.digestWith(image.digest))
  const entries: string[] = []
  const tar = extract(READ_OPTIONS)
  Readable.from([layers.at(-1)]).pipe(tar)
  for await (const entry of tar) {
    const { name, type, mode, uid, gid } = entry.header
    entries.push(`${name} ${String(type)} ${(mode ?? 0).toString(8)} ${String(uid)}:${String(gid)}`)
    entry.resume()
  }
  assert.deepEqual(entries, [
    '.msb directory 755 0:0',
    '.msb/.wh..wh..opq file 644 0:0',
    '.msb/scripts directory 755 0:0',
    '.msb/tools directory 755 0:0',
    '.msb/tools/agent.pl file 644 0:0',
    '.msb/tools/perl file 755 0:0',
  ])
})

test('the same image and toolbox have the same digest in every process, and another toolbox has another one', async (t) => {
  const image = await makeTestImage({ layers: LAYERS })
  const { images, load } = await openWorld(t)
  await load(image, 'localhost/demo')
  const folder = await makeFolder(t)
  const digestWith = async (tools: typeof TOOLS): Promise<string> =>
    await makeToolboxImages(images, await openToolboxLayer(join(folder, 'toolbox.tar'), tools)).digestWith(image.digest)
  const digest = await digestWith(TOOLS)
  assert.equal(await digestWith(TOOLS.toReversed()), digest)
  assert.notEqual(await digestWith(TOOLS.slice(1)), digest)
})

test('a manifest of Docker gets a layer of Docker, and a history one entry more', async (t) => {
  const world = await openWithToolbox(t)
  const made = await makeTestImage({ layers: LAYERS })
  const history = LAYERS.map((_, index) => ({ created_by: `step ${String(index)}` }))
  const configuration = Buffer.from(
    JSON.stringify({ ...(JSON.parse(made.configuration.toString('utf8')) as object), history }),
  )
  const parsed = JSON.parse(made.manifest.toString('utf8')) as Manifest
  const docker = 'application/vnd.docker'
  const manifest = Buffer.from(
    JSON.stringify({
      ...parsed,
      mediaType: `${docker}.distribution.manifest.v2+json`,
      config: {
        mediaType: `${docker}.container.image.v1+json`,
        digest: sha256(configuration),
        size: configuration.length,
      },
      layers: parsed.layers.map((layer) => ({ ...layer, mediaType: `${docker}.image.rootfs.diff.tar.gzip` })),
      annotations: { 'example.note': 'kept' },
    }),
  )
  const blobs = new Map([...made.blobs, [sha256(configuration), configuration]])
  const image: TestImage = { ...made, configuration, manifest, digest: sha256(manifest), blobs }
  await world.load(image, 'localhost/demo')
  const pulled = await pull(world, await world.toolbox.digestWith(image.digest))
  assert.equal(pulled.manifest.layers.at(-1)?.mediaType, `${docker}.image.rootfs.diff.tar`)
  assert.deepEqual(pulled.manifest.annotations, { 'example.note': 'kept' })
  assert.deepEqual(pulled.configuration['history'], [...history, { created_by: 'sandyard toolbox' }])
})

test('a credential opens the layers of its own images alone', async (t) => {
  const world = await openWithToolbox(t)
  const [image, other] = [
    await makeTestImage({ layers: LAYERS }),
    await makeTestImage({ layers: [[{ path: 'other', content: 'other' }]] }),
  ]
  await world.load(image, 'localhost/demo')
  await world.load(other, 'localhost/other')
  const digest = await world.toolbox.digestWith(other.digest)
  assert.equal((await world.ask(`/v2/localhost/other/manifests/${digest}`)).status, 403)
  assert.equal((await world.ask(`${REPOSITORY}/manifests/${digest}`)).status, 404)
  const manifest = JSON.parse(
    (await world.ask(`/v2/localhost/other/manifests/${digest}`, { as: 'localhost/other' })).body.toString('utf8'),
  ) as Manifest
  assert.equal((await world.ask(`${REPOSITORY}/blobs/${manifest.config.digest}`)).status, 404)
  await world.images.remove('localhost/other')
  const gone = await world.ask(`/v2/localhost/other/manifests/${digest}`, { as: 'localhost/other' })
  assert.equal(gone.status, 404)
})

test('an image with a damaged or missing file is refused, and others are served on', async (t) => {
  const world = await openWithToolbox(t)
  const [whole, damaged, lacking] = [
    await makeTestImage({ layers: LAYERS }),
    await makeTestImage({ layers: [[{ path: 'a', content: 'a' }]] }),
    await makeTestImage({ layers: [[{ path: 'b', content: 'b' }]] }),
  ]
  await world.load(whole, 'localhost/demo')
  await world.load(damaged, 'localhost/damaged')
  await world.load(lacking, 'localhost/lacking')
  const pathOf = (digest: string): string => join(world.dir, 'blobs', digest.slice('sha256:'.length))
  await writeFile(pathOf(sha256(damaged.configuration)), Buffer.alloc(damaged.configuration.length, 'x'))
  await rm(pathOf(sha256(lacking.configuration)))
  await assert.rejects(world.toolbox.digestWith(damaged.digest), /has the digest/)
  await assert.rejects(world.toolbox.digestWith(lacking.digest), /load it again/)
  await pull(world, await world.toolbox.digestWith(whole.digest))
})
