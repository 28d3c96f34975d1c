import assert from 'node:assert/strict'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { asId, type OrgId } from '../../src/domain/ids.ts'
import type { Image } from '../../src/worker/images/image.ts'
import type { ImageStore, ResolveOptions } from '../../src/worker/images/image-store.ts'
import { startRegistry, type TestRegistry } from '../support/registry.ts'
import { attack } from '../support/security-attack.ts'
import { makeTestImage, writeLayout, type TestImage } from '../support/test-image.ts'
import { waitUntil } from '../support/wait.ts'
import { makeFolder, NEEDS_ROOT, openStore, wanted } from '../worker/images/setup.ts'

const AUTH = { username: 'owner', password: 'password-of-the-owner' }
const OWNER = asId<OrgId>('00000000-0000-4000-8000-00000000000a')
const STRANGER = asId<OrgId>('00000000-0000-4000-8000-00000000000b')
const PRIVATE = [{ path: 'secret', content: 'of the owner' }]
const facts = {
  target: 'images',
  attacker: "another organization's key",
  finding: 7,
  skip: NEEDS_ROOT === false ? null : NEEDS_ROOT,
} as const

type World = {
  readonly store: ImageStore
  readonly dir: string
  /** The owner's registry, which requires the owner's credential. */
  readonly closed: TestRegistry
  /** The stranger's registry, which answers everyone. */
  readonly own: TestRegistry
  readonly image: TestImage
  readonly reference: string
}

async function openWorld(t: TestContext): Promise<World> {
  const closed = await startRegistry({ auth: { mode: 'bearer', ...AUTH } })
  const own = await startRegistry()
  t.after(() => Promise.all([closed.close(), own.close()]))
  const image = await makeTestImage({ layers: [PRIVATE] })
  closed.push('app', '1', image)
  const dir = await makeFolder(t)
  return { store: await openStore(dir), dir, closed, own, image, reference: `${closed.address}/app:1` }
}

/** Pulls for an organization, with the owner's credential if it is the owner. Null if the pull is refused. */
function pull(
  { store }: World,
  org: OrgId,
  reference: string,
  options: Partial<ResolveOptions> = {},
): Promise<Image | null> {
  const auth = org === OWNER ? AUTH : null
  return store.resolve(reference, wanted({ org, auth, ...options })).catch(() => null)
}

attack("gets another organization's private layer by naming its diff_id in an image of its own", facts, async (t) => {
  const world = await openWorld(t)
  const { own, image, reference } = world
  assert.ok((await pull(world, OWNER, reference)) !== null)
  const bait = [{ path: 'bait' }]
  const claims = {
    'other-bytes': await makeTestImage({ layers: [bait], diffIds: image.diffIds }),
    'no-tar': await makeTestImage({ layers: [Buffer.from('no tar at all')], diffIds: image.diffIds }),
    'no-bytes': await makeTestImage({ layers: [Buffer.alloc(0)], diffIds: image.diffIds }),
    'below-a-true-layer': await makeTestImage({
      layers: [bait, bait],
      diffIds: [...(await makeTestImage({ layers: [bait] })).diffIds, ...image.diffIds],
    }),
    'without-blob': { ...(await makeTestImage({ layers: [bait], diffIds: image.diffIds })), blobs: new Map() },
  }
  let tries = 0
  for (const [name, claim] of Object.entries(claims)) {
    own.push(name, '1', claim)
    for (const policy of ['if_missing', 'always', 'never'] as const) {
      const got = await pull(world, STRANGER, `${own.address}/${name}:1`, { policy })
      assert.equal(got, null, `the stranger got the layer by ${name}`)
      tries += 1
    }
  }
  assert.ok((await pull(world, OWNER, reference)) !== null, 'the owner lost the layer')
  return { tries, outcome: 'every claim was downloaded and refused, and the owner kept the layer' }
})

attack("joins another organization's download of a private layer", facts, async (t) => {
  const world = await openWorld(t)
  const { own, closed, image, reference } = world
  own.push('claim', '1', await makeTestImage({ layers: [[{ path: 'bait' }]], diffIds: image.diffIds }))
  closed.inject({ kind: 'stall', ms: 700 }, 1)
  const owners = pull(world, OWNER, reference)
  await waitUntil(() => closed.count('GET /v2/app/blobs') >= 2)
  const tries = ['if_missing', 'always', 'if_missing'] as const
  const strangers = await Promise.all(
    tries.map((policy) => pull(world, STRANGER, `${own.address}/claim:1`, { policy })),
  )
  assert.ok((await owners) !== null)
  assert.deepEqual(strangers, [null, null, null])
  return { tries: tries.length, outcome: "no pull of the stranger got the layer that the owner's pull was downloading" }
})

attack('gets a private layer through an image that its owner was made to start', facts, async (t) => {
  const world = await openWorld(t)
  const { own, image, reference } = world
  await pull(world, OWNER, reference)
  // The owner already has the layer, so the claim needs no proof for the owner, and the image gets a record.
  own.push('lure', '1', await makeTestImage({ layers: [[{ path: 'bait' }]], diffIds: image.diffIds }))
  const lure = `${own.address}/lure:1`
  assert.ok((await pull(world, OWNER, lure)) !== null)
  const policies = ['if_missing', 'never', 'always'] as const
  for (const policy of policies) assert.equal(await pull(world, STRANGER, lure, { policy }), null, policy)
  return { tries: policies.length, outcome: 'the stored image was refused to the stranger with each pull policy' }
})

attack("starts another organization's private image from the worker's store", facts, async (t) => {
  const world = await openWorld(t)
  const { closed, reference } = world
  assert.ok((await pull(world, OWNER, reference)) !== null)
  const wrong = { ...AUTH, password: 'a-wrong-password' }
  let tries = 0
  const tryAll = async (): Promise<void> => {
    for (const policy of ['if_missing', 'never', 'always'] as const) {
      for (const auth of [null, wrong]) {
        assert.equal(await pull(world, STRANGER, reference, { policy, auth }), null, policy)
        tries += 1
      }
    }
  }
  await tryAll()
  // With a credential that the registry accepts, the stranger must still download the layer before it may use it.
  const blobs = closed.count('GET /v2/app/blobs')
  assert.equal(await pull(world, STRANGER, reference, { policy: 'never', auth: AUTH }), null)
  assert.ok((await pull(world, STRANGER, reference, { auth: AUTH })) !== null)
  assert.equal(closed.count('GET /v2/app/blobs') - blobs, 2, 'configuration and layer')
  assert.ok((await pull(world, STRANGER, reference, { auth: AUTH })) !== null)
  assert.equal(closed.count('GET /v2/app/blobs') - blobs, 2, 'the layer was downloaded again after it was proved')
  await closed.close()
  await tryAll()
  return { tries, outcome: 'no try without an accepted credential got the image, also while its registry was away' }
})

test('a public layer is downloaded once for all organizations', { skip: facts.skip ?? false }, async (t) => {
  const world = await openWorld(t)
  world.own.push('public', '1', world.image)
  const reference = `${world.own.address}/public:1`
  const both = [pull(world, OWNER, reference, { auth: null }), pull(world, STRANGER, reference)]
  assert.ok((await Promise.all(both)).every((got) => got !== null))
  await pull(world, STRANGER, reference)
  const [layer = ''] = world.image.layerDigests
  assert.equal(world.own.count(`GET /v2/public/blobs/${layer}`), 1)
})

test(
  'without recorded proofs, as after an upgrade, a pulled image is proved again and a loaded one is used',
  { skip: facts.skip ?? false },
  async (t) => {
    const world = await openWorld(t)
    const { store, dir, closed, image, reference } = world
    const layout = join(await makeFolder(t), 'layout')
    await writeLayout(image, layout)
    await store.load(layout, 'localhost/loaded', AbortSignal.timeout(30_000))
    await pull(world, OWNER, reference)
    const newer = await makeTestImage({ layers: [PRIVATE, [{ path: 'newer' }]] })
    closed.push('app', '1', newer)
    await rm(join(dir, 'proofs'), { recursive: true })
    const reopened = { ...world, store: await openStore(dir) }
    assert.ok((await pull(reopened, STRANGER, 'localhost/loaded')) !== null)
    assert.equal(await pull(reopened, OWNER, reference, { policy: 'never' }), null)
    assert.equal((await pull(reopened, OWNER, reference))?.digest, image.digest, 'the tag was resolved again')
    assert.ok((await pull(reopened, OWNER, reference, { policy: 'never' })) !== null)
  },
)
