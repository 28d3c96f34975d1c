import assert from 'node:assert/strict'
import { readFile, readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { startRegistry } from '../../support/registry.ts'
import { makeTestImage, writeLayout } from '../../support/test-image.ts'
import { waitUntil } from '../../support/wait.ts'
import { makeFolder, NEEDS_ROOT, openStore, UID_SHIFT, wanted } from './setup.ts'

const AUTH = { username: 'alice', password: 's3cret-word' }
const HELLO = [{ path: 'etc/hello', content: 'hello', uid: 7, gid: 8, mode: 0o640 }]

for (const compression of ['gzip', 'zstd', 'plain'] as const) {
  test(
    `an image with ${compression} layers is pulled by tag through an index, with its configuration`,
    { skip: NEEDS_ROOT },
    async (t) => {
      const registry = await startRegistry()
      t.after(() => registry.close())
      const config = { Cmd: ['/bin/sh'], Entrypoint: [''], Env: ['A=b'], WorkingDir: '/w', User: 'demo' }
      const image = await makeTestImage({ layers: [HELLO, [{ path: 'top', content: 'x' }]], compression, config })
      registry.push('a/b', '1', image, { index: true })
      const dir = await makeFolder(t)
      const store = await openStore(dir)
      const got = await store.resolve(`${registry.address}/a/b:1`, wanted())
      assert.equal(got.digest, image.digest)
      assert.deepEqual(got.config, { env: ['A=b'], entrypoint: null, cmd: ['/bin/sh'], workdir: '/w', user: 'demo' })
      assert.equal(got.layers.length, 2)
      const file = join(got.layers[0] ?? '', 'etc/hello')
      assert.equal(await readFile(file, 'utf8'), 'hello')
      const { uid, gid, mode } = await stat(file)
      assert.deepEqual([uid, gid, mode & 0o7777], [UID_SHIFT + 7, UID_SHIFT + 8, 0o640])
      assert.deepEqual(await store.list(), [`${registry.address}/a/b:1`])
      assert.deepEqual(await readdir(join(dir, 'tmp')), [])
    },
  )
}

test(
  'if_missing asks the registry once, always asks each time and fetches only what changed, never pulls nothing',
  { skip: NEEDS_ROOT },
  async (t) => {
    const registry = await startRegistry()
    t.after(() => registry.close())
    const first = await makeTestImage({ layers: [HELLO] })
    const second = await makeTestImage({ layers: [HELLO, [{ path: 'new', content: 'n' }]] })
    registry.push('a', 'latest', first)
    const store = await openStore(await makeFolder(t))
    const reference = `${registry.address}/a`
    await assert.rejects(store.resolve(reference, wanted({ policy: 'never' })), {
      reason: 'image',
      message: /pull policy is 'never'/,
    })
    assert.equal(registry.requests.length, 0)
    await store.resolve(reference, wanted())
    const afterPull = registry.requests.length
    await store.resolve(reference, wanted())
    await store.resolve(reference, wanted({ policy: 'never' }))
    assert.equal(registry.requests.length, afterPull)
    registry.push('a', 'latest', second)
    assert.equal((await store.resolve(reference, wanted())).digest, first.digest)
    assert.equal((await store.resolve(reference, wanted({ policy: 'always' }))).digest, second.digest)
    assert.equal(
      registry.count(`GET /v2/a/blobs/${first.layerDigests[0] ?? ''}`),
      1,
      'a stored layer is not fetched again',
    )
    const before = registry.requests.length
    await store.resolve(reference, wanted({ policy: 'always' }))
    assert.deepEqual(registry.requests.slice(before), ['HEAD /v2/a/manifests/latest'])
    const byDigest = await store.resolve(`${reference}@${first.digest}`, wanted())
    assert.equal(byDigest.digest, first.digest)
  },
)

for (const mode of ['basic', 'bearer'] as const) {
  test(
    `with ${mode} access an image that one caller pulled is refused to callers who can't show a credential`,
    { skip: NEEDS_ROOT },
    async (t) => {
      const registry = await startRegistry({ auth: { mode, ...AUTH } })
      t.after(() => registry.close())
      registry.push('private/x', '1', await makeTestImage({ layers: [HELLO] }))
      const store = await openStore(await makeFolder(t))
      const reference = `${registry.address}/private/x:1`
      const refused = { reason: 'registry' }
      await assert.rejects(store.resolve(reference, wanted()), refused)
      await assert.rejects(
        store.resolve(reference, wanted({ auth: { username: 'alice', password: 'wrong-word' } })),
        (error: Error) => {
          assert.doesNotMatch(`${error.message} ${String(error.cause)}`, /wrong-word|s3cret/)
          return true
        },
      )
      const mine = await store.resolve(reference, wanted({ auth: AUTH }))
      for (const policy of ['if_missing', 'never', 'always'] as const) {
        await assert.rejects(store.resolve(reference, wanted({ policy })), refused, policy)
        const again = await store.resolve(reference, wanted({ policy, auth: AUTH }))
        assert.deepEqual(again.layers, mine.layers)
      }
      assert.equal((await store.inspect(reference))?.origin, 'credential')
      registry.setPublic(true)
      await store.resolve(reference, wanted())
      assert.equal(
        (await store.inspect(reference))?.origin,
        'anonymous',
        'an image that anyone may pull is then available to all callers',
      )
      await registry.close()
      await store.resolve(reference, wanted())
    },
  )
}

test('pulls of the same image at the same time share one download', { skip: NEEDS_ROOT }, async (t) => {
  const registry = await startRegistry()
  t.after(() => registry.close())
  const image = await makeTestImage({ layers: [HELLO, [{ path: 'b', content: 'b' }]] })
  registry.push('a', '1', image)
  registry.push('copy', '1', image)
  const store = await openStore(await makeFolder(t))
  const names = ['a:1', 'a:1', 'copy:1', 'a:1', 'copy:1']
  const images = await Promise.all(names.map((name) => store.resolve(`${registry.address}/${name}`, wanted())))
  assert.equal(new Set(images.map(({ layers }) => layers.join())).size, 1)
  for (const digest of image.layerDigests) {
    assert.equal(registry.requests.filter((request) => request.endsWith(`/blobs/${digest}`)).length, 1)
  }
})

test(
  'a shared pull continues when one caller cancels, and ends when the last caller cancels',
  { skip: NEEDS_ROOT },
  async (t) => {
    const registry = await startRegistry()
    t.after(() => registry.close())
    registry.push('a', '1', await makeTestImage({ layers: [HELLO] }))
    const dir = await makeFolder(t)
    const store = await openStore(dir)
    registry.inject({ kind: 'stall', ms: 300 }, 1)
    const leaving = new AbortController()
    const first = store.resolve(`${registry.address}/a:1`, wanted({ signal: leaving.signal }))
    const second = store.resolve(`${registry.address}/a:1`, wanted())
    leaving.abort()
    await assert.rejects(first, { reason: 'cancelled' })
    assert.equal((await second).layers.length, 1)

    registry.push('b', '1', await makeTestImage({ layers: [[{ path: 'other', content: 'o' }]] }))
    registry.inject({ kind: 'stall', ms: 20_000 }, 1)
    const alone = new AbortController()
    const only = store.resolve(`${registry.address}/b:1`, wanted({ signal: alone.signal }))
    await waitUntil(() => registry.count('GET /v2/b/blobs') >= 2)
    alone.abort()
    await assert.rejects(only, { reason: 'cancelled' })
    await waitUntil(async () => (await readdir(join(dir, 'tmp'))).length === 0)
  },
)

test(
  'network failures and registry errors are retried; a changed blob is refused at once',
  { skip: NEEDS_ROOT },
  async (t) => {
    const registry = await startRegistry()
    t.after(() => registry.close())
    const store = await openStore(await makeFolder(t))
    registry.push('a', '1', await makeTestImage({ layers: [HELLO] }))
    registry.inject({ kind: 'status', status: 503 }, 2)
    registry.inject({ kind: 'truncate' }, 2)
    await store.resolve(`${registry.address}/a:1`, wanted())

    const other = await makeTestImage({ layers: [[{ path: 'x', content: 'x'.repeat(5000) }]], compression: 'plain' })
    registry.push('b', '1', other)
    registry.inject({ kind: 'corrupt' }, 1)
    await assert.rejects(store.resolve(`${registry.address}/b:1`, wanted()), {
      reason: 'registry',
      message: /has the digest/,
    })
    registry.inject({ kind: 'status', status: 500 }, 3)
    await assert.rejects(store.resolve(`${registry.address}/b:1`, wanted()), {
      reason: 'registry',
      message: /status 500/,
    })
    await store.resolve(`${registry.address}/b:1`, wanted())
  },
)

test('a layer whose digest differs from the configuration is refused', { skip: NEEDS_ROOT }, async (t) => {
  const registry = await startRegistry()
  t.after(() => registry.close())
  registry.push('a', '1', await makeTestImage({ layers: [HELLO], diffIds: [`sha256:${'0'.repeat(64)}`] }))
  const dir = await makeFolder(t)
  const store = await openStore(dir)
  await assert.rejects(store.resolve(`${registry.address}/a:1`, wanted()), {
    reason: 'image',
    message: /configuration says sha256:000/,
  })
  assert.deepEqual(
    [await store.list(), await readdir(join(dir, 'layers')), await readdir(join(dir, 'tmp'))],
    [[], [], []],
  )
})

test('a redirect of a blob to another host does not carry the credential there', { skip: NEEDS_ROOT }, async (t) => {
  const [registry, mirror] = [await startRegistry({ auth: { mode: 'bearer', ...AUTH } }), await startRegistry()]
  t.after(() => Promise.all([registry.close(), mirror.close()]))
  const image = await makeTestImage({ layers: [HELLO] })
  registry.push('a', '1', image)
  mirror.push('a', '1', image)
  registry.inject({ kind: 'redirect', to: `http://${mirror.address}` }, 1)
  const store = await openStore(await makeFolder(t))
  await store.resolve(`${registry.address}/a:1`, wanted({ auth: AUTH }))
  assert.deepEqual(mirror.authorizations, [''])
  registry.push('b', '1', await makeTestImage({ layers: [[{ path: 'b' }]] }))
  registry.inject({ kind: 'redirect', to: 'http://registry.example' }, 3)
  await assert.rejects(store.resolve(`${registry.address}/b:1`, wanted({ auth: AUTH })), {
    reason: 'registry',
    message: /not allowed/,
  })
})

test(
  'a missing image, another platform and an unreachable registry fail with messages that say what to do',
  { skip: NEEDS_ROOT },
  async (t) => {
    const registry = await startRegistry()
    const store = await openStore(await makeFolder(t))
    registry.push('foreign', '1', await makeTestImage({ layers: [HELLO], architecture: 'riscv64' }))
    const refusals: readonly (readonly [string, string, RegExp])[] = [
      ['localhost/demo', 'image', /sandyard image load/],
      ['Not A Name', 'image', /lower-case/],
      [`${registry.address}/missing:1`, 'image', /check its name and tag/],
      [`${registry.address}/foreign:1`, 'image', /is for linux\/riscv64/],
    ]
    for (const [reference, reason, message] of refusals) {
      await assert.rejects(store.resolve(reference, wanted()), { reason, message }, reference)
    }
    await registry.close()
    await assert.rejects(store.resolve(`${registry.address}/a:1`, wanted()), {
      reason: 'registry',
      message: /could not be reached/,
    })
  },
)

test('an image in the store is used without asking its registry', { skip: NEEDS_ROOT }, async (t) => {
  const registry = await startRegistry()
  t.after(() => registry.close())
  registry.push('a', '1', await makeTestImage({ layers: [HELLO] }))
  const store = await openStore(await makeFolder(t))
  const first = await store.resolve(`${registry.address}/a:1`, wanted())
  const asked = registry.requests.length
  for (let round = 0; round < 20; round++)
    assert.deepEqual(await store.resolve(`${registry.address}/a:1`, wanted()), first)
  assert.equal(registry.requests.length, asked)
})

test('a registry that stalls in the middle of a layer is asked again', { skip: NEEDS_ROOT }, async (t) => {
  const registry = await startRegistry()
  t.after(() => registry.close())
  const image = await makeTestImage({ layers: [HELLO], compression: 'plain' })
  const dir = await makeFolder(t)
  await writeLayout(image, join(dir, 'layout'))
  await registry.pushLayout('from/layout', '1', join(dir, 'layout'))
  const store = await openStore(join(dir, 'store'), { timeouts: { replyMs: 5_000, idleMs: 200 } })
  registry.inject({ kind: 'stall', ms: 20_000 }, 1)
  const got = await store.resolve(`${registry.address}/from/layout:1`, wanted())
  assert.equal(got.digest, image.digest)
  assert.equal(registry.count(`GET /v2/from/layout/blobs/${image.layerDigests[0] ?? ''}`), 2)
})

test(
  'one caller’s failed pull does not fail another caller who wants the same layer',
  { skip: NEEDS_ROOT },
  async (t) => {
    const [broken, sound] = [await startRegistry(), await startRegistry()]
    t.after(() => Promise.all([broken.close(), sound.close()]))
    const image = await makeTestImage({ layers: [HELLO], compression: 'plain' })
    for (const registry of [broken, sound]) registry.push('a', '1', image)
    const store = await openStore(await makeFolder(t), { timeouts: { replyMs: 5_000, idleMs: 300 } })
    broken.inject({ kind: 'stall', ms: 20_000 }, 3)
    const failing = store.resolve(`${broken.address}/a:1`, wanted())
    const failed = assert.rejects(failing, { reason: 'registry' })
    await waitUntil(() => broken.count('GET /v2/a/blobs') >= 2)
    const other = await store.resolve(`${sound.address}/a:1`, wanted())
    assert.equal(other.layers.length, 1)
    await failed
  },
)
