import assert from 'node:assert/strict'
import { existsSync, readdirSync, statfsSync } from 'node:fs'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { makeDiskReserve } from '../../src/worker/disk-reserve.ts'
import type { Image } from '../../src/worker/images/image.ts'
import type { ImageStore, ImageStoreDeps } from '../../src/worker/images/image-store.ts'
import { StartError } from '../../src/worker/start-error.ts'
import { mountSmallDisk, whyNoSmallDisk, type SmallDisk } from '../support/small-disk.ts'
import { startRegistry } from '../support/registry.ts'
import { attack } from '../support/security-attack.ts'
import { makeTestClock } from '../support/test-clock.ts'
import { makeTestImage } from '../support/test-image.ts'
import { openStore, wanted } from '../worker/images/setup.ts'

const MIB = 1024 * 1024
const IMAGE_MIB = 12
/** Longer than a started sandbox needs to mount its image. */
const A_WHILE_MS = 11 * 60_000
const FACTS = {
  target: 'images',
  attacker: 'a tenant with a registry of their own',
  finding: 3,
  skip: whyNoSmallDisk() || null,
} as const

type World = {
  readonly disk: SmallDisk
  readonly store: ImageStore
  /** The layers of the images that sandboxes use. */
  readonly inUse: Set<string>
  readonly clock: ReturnType<typeof makeTestClock>
  /** Pushes a new image of `IMAGE_MIB` and pulls it. */
  pull(name: string): Promise<Image>
}

async function openWorld(t: TestContext, deps: (disk: SmallDisk) => Partial<ImageStoreDeps>): Promise<World> {
  const disk = mountSmallDisk(128)
  t.after(() => {
    disk.remove()
  })
  const registry = await startRegistry()
  t.after(() => registry.close())
  const inUse = new Set<string>()
  const clock = makeTestClock()
  const readLayersInUse = (): Promise<ReadonlySet<string>> => Promise.resolve(inUse)
  const store = await openStore(join(disk.folder, 'store'), { clock, readLayersInUse, ...deps(disk) })
  return {
    disk,
    store,
    inUse,
    clock,
    async pull(name) {
      const content = Buffer.alloc(IMAGE_MIB * MIB, name)
      registry.push(name, 'latest', await makeTestImage({ layers: [[{ path: name, content }]] }))
      return store.resolve(`${registry.address}/${name}:latest`, wanted())
    },
  }
}

const layersOf = ({ disk }: World): readonly string[] => readdirSync(join(disk.folder, 'store/layers'))
const freeMib = ({ disk }: World): number => {
  const { bavail, bsize } = statfsSync(disk.folder)
  return Math.floor((bavail * bsize) / MIB)
}

attack('fills the disk with images, one after the other', FACTS, async (t) => {
  const world = await openWorld(t, () => ({ storeBytes: 48 * MIB }))
  const used = await world.pull('of-a-sandbox')
  for (const layer of used.layers) world.inUse.add(layer)
  const tries = 9
  for (let index = 0; index < tries; index++) {
    world.clock.advance(A_WHILE_MS)
    await world.pull(`image-${String(index)}`)
    assert.ok(layersOf(world).length <= 4, 'the store holds more than its limit')
  }
  assert.ok(
    used.layers.every((layer) => existsSync(layer)),
    'a layer that a sandbox needs is gone',
  )
  const left = await world.store.list()
  assert.ok(
    left.some((reference) => reference.includes(`image-${String(tries - 1)}`)),
    'the newest image was evicted',
  )
  return {
    tries,
    outcome: `at a limit of 48 MiB, ${String(tries + 1)} images of 12 MiB never took more; the oldest went`,
  }
})

attack('fills the image store with images that all are in use', FACTS, async (t) => {
  const world = await openWorld(t, () => ({ storeBytes: 48 * MIB }))
  let refused = 0
  for (let index = 0; index < 6; index++) {
    world.clock.advance(A_WHILE_MS)
    try {
      for (const layer of (await world.pull(`image-${String(index)}`)).layers) world.inUse.add(layer)
    } catch (error) {
      assert.ok(error instanceof StartError && error.reason === 'disk')
      assert.match(error.message, /image store of this worker is full.*SANDYARD_IMAGE_STORE_GIB/)
      refused += 1
    }
  }
  assert.equal(refused, 3)
  assert.equal(layersOf(world).length, 3)
  assert.ok([...world.inUse].every((layer) => existsSync(layer)))
  assert.deepEqual(readdirSync(join(world.disk.folder, 'store/tmp')), [])
  return { tries: 6, outcome: '3 images were stored, 3 refused by name of the limit; no layer in use was deleted' }
})

attack('takes the disk space that PostgreSQL needs, by images', FACTS, async (t) => {
  const reserveMib = 60
  const world = await openWorld(t, (disk) => ({ reserve: makeDiskReserve(disk.folder, reserveMib) }))
  let refused = 0
  for (let index = 0; index < 10; index++) {
    try {
      for (const layer of (await world.pull(`image-${String(index)}`)).layers) world.inUse.add(layer)
    } catch (error) {
      assert.ok(error instanceof StartError && error.reason === 'disk', String(error))
      assert.match(error.message, /reserve of the control plane.*SANDYARD_DISK_RESERVE_MIB/)
      refused += 1
    }
    assert.ok(freeMib(world) > reserveMib - 10, `only ${String(freeMib(world))} MiB are free`)
  }
  assert.ok(refused >= 4)
  return {
    tries: 10,
    outcome: `${String(refused)} pulls were refused; ${String(freeMib(world))} of 60 reserved MiB stayed free`,
  }
})
