import assert from 'node:assert/strict'
import { readdir, rm, utimes, writeFile } from 'node:fs/promises'
import type { IncomingMessage } from 'node:http'
import { request } from 'node:https'
import type { Socket } from 'node:net'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import { before, test } from 'node:test'
import { makeDockerArchive, makeTestImage, sha256, type TestImage } from '../../support/test-image.ts'
import { authorizationOf, openWorld, type Answer } from './registry-world.ts'

// The registry of loaded images, over HTTPS as a kubelet asks it.

const NEVER = new AbortController().signal
/** More than the kernel buffers. */
const SIZE = 64 * 1024 * 1024
const LAYER = [{ path: 'file', content: 'x'.repeat(300_000) }]
let image: TestImage

before(async () => {
  image = await makeTestImage({ layers: [LAYER, [{ path: 'top', content: 'top' }]], compression: 'gzip' })
})

test('a client pulls a loaded image by tag and by digest, byte for byte as it was loaded', async (t) => {
  const { load, ask } = await openWorld(t)
  await load(image, 'localhost/demo')
  assert.equal((await ask('/v2/')).status, 200)
  const byTag = await ask('/v2/localhost/demo/manifests/latest')
  assert.equal(byTag.status, 200)
  assert.equal(byTag.headers['docker-content-digest'], image.digest)
  assert.deepEqual(byTag.body, image.manifest)
  const byDigest = await ask(`/v2/localhost/demo/manifests/${image.digest}`)
  assert.deepEqual(byDigest.body, image.manifest)
  for (const [digest, content] of image.blobs) {
    const blob = await ask(`/v2/localhost/demo/blobs/${digest}`)
    assert.equal(blob.status, 200)
    assert.deepEqual(blob.body, content)
  }
  assert.equal((await ask('/v2/localhost/demo/manifests/other')).status, 404)
  assert.equal((await ask(`/v2/localhost/demo/blobs/sha256:${'0'.repeat(64)}`)).status, 404)
  assert.equal((await ask('/v2/localhost/demo/blobs/..%2F..%2Fsecret')).status, 404)
})

test('HEAD answers the headers of GET, and a range answers its part', async (t) => {
  const { load, ask } = await openWorld(t)
  await load(image, 'localhost/demo')
  const [digest = ''] = image.layerDigests
  const content = image.blobs.get(digest) ?? Buffer.alloc(0)
  for (const path of ['/v2/localhost/demo/manifests/latest', `/v2/localhost/demo/blobs/${digest}`]) {
    const [head, get] = [await ask(path, { method: 'HEAD' }), await ask(path)]
    for (const name of ['content-length', 'content-type', 'docker-content-digest'])
      assert.equal(head.headers[name], get.headers[name])
    assert.equal(head.body.length, 0)
  }
  const part = async (range: string): Promise<Answer> =>
    await ask(`/v2/localhost/demo/blobs/${digest}`, { headers: { range } })
  const middle = await part('bytes=10-19')
  assert.deepEqual([middle.status, middle.body], [206, content.subarray(10, 20)])
  assert.equal(middle.headers['content-range'], `bytes 10-19/${String(content.length)}`)
  assert.deepEqual((await part('bytes=-5')).body, content.subarray(-5))
  assert.deepEqual((await part('bytes=100-')).body, content.subarray(100))
  assert.equal((await part(`bytes=${String(content.length)}-`)).status, 416)
})

test('without a credential of the repository nothing is served, and nothing is ever written', async (t) => {
  const { load, ask } = await openWorld(t)
  await load(image, 'localhost/demo')
  await load(await makeTestImage({ layers: [[{ path: 'other', content: 'other' }]] }), 'localhost/other')
  const path = '/v2/localhost/demo/manifests/latest'
  const wrong = `Basic ${Buffer.from('localhost/demo:wrong').toString('base64')}`
  for (const options of [{ as: null }, { as: null, headers: { authorization: wrong } }]) {
    const refused = await ask(path, options)
    assert.equal(refused.status, 401)
    assert.equal(refused.headers['www-authenticate'], 'Basic realm="Sandyard"')
    assert.equal((await ask('/v2/', options)).status, 401)
  }
  assert.equal((await ask(path, { as: 'localhost/other' })).status, 403)
  const [layer = ''] = image.layerDigests
  assert.equal((await ask(`/v2/localhost/other/blobs/${layer}`, { as: 'localhost/other' })).status, 404)
  for (const method of ['POST', 'PUT', 'PATCH', 'DELETE']) {
    const refused = await ask('/v2/localhost/demo/blobs/uploads/', { method })
    assert.deepEqual([refused.status, refused.headers.allow], [405, 'GET, HEAD'])
  }
})

test('an archive of docker save gets a manifest, and each kind of compression its media type', async (t) => {
  const { images, ask, dir } = await openWorld(t)
  const archive = join(dir, 'saved.tar')
  await writeFile(archive, await makeDockerArchive(image))
  const { digest } = await images.load(archive, 'host.example:5000/team/box:1', NEVER)
  const repository = 'host.example-5000/team/box'
  const { body, headers } = await ask(`/v2/${repository}/manifests/1`, { as: repository })
  assert.equal(sha256(body), digest)
  const manifest = JSON.parse(body.toString('utf8')) as {
    mediaType: string
    config: { digest: string }
    layers: { digest: string; size: number; mediaType: string }[]
  }
  assert.equal(headers['content-type'], manifest.mediaType)
  assert.equal(manifest.config.digest, sha256(image.configuration))
  assert.equal(manifest.layers.length, 2)
  for (const layer of manifest.layers) {
    const blob = await ask(`/v2/${repository}/blobs/${layer.digest}`, { as: repository })
    assert.deepEqual([blob.body.length, sha256(blob.body)], [layer.size, layer.digest])
    assert.equal(layer.mediaType.endsWith('+gzip'), blob.body[0] === 0x1f)
  }
})

test('an image whose layer is not what its configuration says, or beyond a limit, is not loaded', async (t) => {
  const { load, images } = await openWorld(t, { unpackedImageBytes: 400_000 })
  const lying = await makeTestImage({ layers: [LAYER], diffIds: [`sha256:${'1'.repeat(64)}`] })
  await assert.rejects(load(lying, 'localhost/lying'), /but the image's configuration says/)
  const large = await makeTestImage({ layers: [[{ path: 'a', content: 'a'.repeat(500_000) }]], compression: 'gzip' })
  await assert.rejects(load(large, 'localhost/large'), /is larger than 400000 bytes/)
  assert.deepEqual(await images.list(), [])
})

test('an image beyond the limit of the store is refused, until blobs that no image has make space for it', async (t) => {
  const { load, images, ask, dir } = await openWorld(t, {}, 400_000)
  const plain = (content: string): Promise<TestImage> =>
    makeTestImage({ layers: [[{ path: 'file', content: content.repeat(300_000) }]], compression: 'plain' })
  const [first, second] = [await plain('a'), await plain('b')]
  await load(first, 'localhost/first')
  await assert.rejects(load(second, 'localhost/second'), /holds at most 0\.0 GiB .*`sandyard image remove`/)
  assert.equal((await ask('/v2/localhost/first/manifests/latest', { as: 'localhost/first' })).status, 200)
  assert.equal(await images.inspect('localhost/second'), null)
  await images.remove('localhost/first')
  const past = new Date(Date.now() - 3_600_000)
  for (const blob of await readdir(join(dir, 'blobs'))) await utimes(join(dir, 'blobs', blob), past, past)
  await load(second, 'localhost/second')
  assert.deepEqual((await readdir(join(dir, 'tmp'))).length, 0)
})

test('a removed image is served no longer, and prune deletes the blobs that no other image has', async (t) => {
  const { load, images, ask, dir } = await openWorld(t)
  await load(image, 'localhost/demo')
  await load(await makeTestImage({ layers: [LAYER], compression: 'gzip' }), 'localhost/other')
  await images.remove('localhost/demo')
  assert.equal((await ask('/v2/localhost/demo/manifests/latest')).status, 404)
  const [shared = '', own = ''] = image.layerDigests
  assert.equal(await images.prune(), 0, 'blobs of the last minutes may belong to a load that is under way')
  const past = new Date(Date.now() - 3_600_000)
  for (const digest of [shared, own]) await utimes(join(dir, 'blobs', digest.slice('sha256:'.length)), past, past)
  assert.equal(await images.prune(), 1)
  assert.equal(await images.findBlob(own), null)
  assert.notEqual(await images.findBlob(shared), null)
})

test('a blob that the disk has lost or cut is not served as whole', async (t) => {
  const { load, ask, dir } = await openWorld(t)
  await load(image, 'localhost/demo')
  const [cut = '', lost = ''] = image.layerDigests
  const pathOf = (digest: string): string => join(dir, 'blobs', digest.slice('sha256:'.length))
  await writeFile(pathOf(cut), Buffer.alloc(image.blobs.get(cut)?.length ?? 0))
  await assert.rejects(async () => {
    const { body } = await ask(`/v2/localhost/demo/blobs/${cut}`)
    assert.equal(sha256(body), cut)
  })
  await rm(pathOf(lost))
  assert.equal((await ask(`/v2/localhost/demo/blobs/${lost}`)).status, 404)
})

test('a client that stops reading stops the read of the file, and holds up nobody else', async (t) => {
  const { load, server, ask } = await openWorld(t)
  const big = await makeTestImage({ layers: [[{ path: 'big', content: Buffer.alloc(SIZE, 'z') }]] })
  await load(big, 'localhost/demo')
  const [digest = ''] = big.layerDigests
  const written: Socket[] = []
  server.server.once('secureConnection', (socket) => written.push(socket))
  const asking = request(`https://127.0.0.1:${String(server.port)}/v2/localhost/demo/blobs/${digest}`, {
    rejectUnauthorized: false,
    headers: { authorization: authorizationOf('localhost/demo') },
  })
  const reply = await new Promise<IncomingMessage>((resolve, reject) => {
    asking.once('response', resolve).once('error', reject).end()
  })
  reply.pause()
  for (let others = 0; others < 5; others += 1)
    assert.equal((await ask('/v2/localhost/demo/manifests/latest')).status, 200)
  const [slow] = written
  // The kernel buffers some MiB for each side.
  assert.ok(slow !== undefined && slow.bytesWritten < SIZE, `${String(slow?.bytesWritten)} bytes were written`)
  assert.equal(sha256(await buffer(reply)), digest)
})
