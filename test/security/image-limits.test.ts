import assert from 'node:assert/strict'
import { isDeepStrictEqual } from 'node:util'
import { execFileSync } from 'node:child_process'
import { statfsSync } from 'node:fs'
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { DEFAULT_IMAGE_LIMITS, type ImageLimits } from '../../src/worker/images/image.ts'
import { mountSmallDisk, whyNoSmallDisk } from '../support/small-disk.ts'
import { startRegistry } from '../support/registry.ts'
import { waitUntil } from '../support/wait.ts'
import { attack } from '../support/security-attack.ts'
import { makeTestImage, type TestEntry } from '../support/test-image.ts'
import { openStore, wanted } from '../worker/images/setup.ts'

const MIB = 1024 * 1024
const FACTS = {
  target: 'images',
  attacker: 'a tenant with a registry of their own',
  finding: 3,
  skip: whyNoSmallDisk() || null,
} as const

type Layers = readonly (readonly TestEntry[])[]
type Expected = { readonly limits: Partial<ImageLimits>; readonly variable: string }

/** Pulls each hostile image into a store on a small disk. Resolves with how many KiB of the disk the largest one took. */
async function pullAll(t: TestContext, images: Readonly<Record<string, Layers>>, expected: Expected): Promise<number> {
  const disk = mountSmallDisk(128)
  t.after(() => {
    disk.remove()
  })
  const registry = await startRegistry()
  t.after(() => registry.close())
  const store = await openStore(join(disk.folder, 'store'), { limits: { ...DEFAULT_IMAGE_LIMITS, ...expected.limits } })
  const before = await usageOf(disk.folder)
  let largestKib = 0
  for (const [name, layers] of Object.entries(images)) {
    registry.push(name, 'latest', await makeTestImage({ layers }))
    const watch = setInterval(() => {
      const [usedKib = 0] = readUsage(disk.folder)
      largestKib = Math.max(largestKib, usedKib - (before.disk[0] ?? 0))
    }, 50)
    try {
      await assert.rejects(store.resolve(`${registry.address}/${name}:latest`, wanted()), (error: unknown) => {
        assert.ok(error instanceof Error)
        assert.match(error.message, new RegExp(`${name}.*limit of this worker.*${expected.variable}`), name)
        return true
      })
    } finally {
      clearInterval(watch)
    }
    // The unpacking of other layers ends a moment after the refusal, and then deletes what it wrote.
    await waitUntil(async () => isDeepStrictEqual(await usageOf(disk.folder), before)).catch(() => undefined)
    assert.deepEqual(await usageOf(disk.folder), before, `${name} left something behind`)
  }
  return largestKib
}

async function usageOf(
  folder: string,
): Promise<{ readonly files: readonly string[]; readonly disk: readonly number[] }> {
  const files = await readdir(join(folder, 'store'), { recursive: true })
  execFileSync('sync', ['--file-system', folder])
  return { files: files.sort(), disk: readUsage(folder) }
}

/** Reads the used KiB and inodes of a file system. */
function readUsage(folder: string): readonly number[] {
  const { bsize, blocks, bfree, files, ffree } = statfsSync(folder)
  return [((blocks - bfree) * bsize) / 1024, files - ffree]
}

attack('fills the disk with an image that is far larger unpacked than packed', FACTS, async (t) => {
  const zeros = (path: string, sizeMib: number): readonly TestEntry[] => [
    { path, content: Buffer.alloc(sizeMib * MIB) },
  ]
  const images = {
    'gzip-bomb': [zeros('zeros', 256)],
    'bomb-of-layers': Array.from({ length: 6 }, (_, index) => zeros(`zeros-${String(index)}`, 6 + index)),
  }
  const largestKib = await pullAll(t, images, {
    limits: { unpackedImageBytes: 32 * MIB },
    variable: 'SANDYARD_IMAGE_MAX_GIB',
  })
  assert.ok(largestKib < 40 * 1024, `the worker stored ${String(largestKib)} KiB`)
  return {
    tries: 2,
    outcome: `at a limit of 32 MiB, images of 256 MiB and 51 MiB were refused; nothing of them was left`,
  }
})

attack('uses up the inodes with an image of very many empty files', FACTS, async (t) => {
  const empty = (prefix: string, count: number): readonly TestEntry[] =>
    Array.from({ length: count }, (_, index) => ({ path: `${prefix}${String(index)}` }))
  const images = {
    'many-files': [empty('f', 20_000)],
    'many-layers-of-files': Array.from({ length: 6 }, (_, index) => empty(`l${String(index)}-`, 1_000)),
    'many-implied-folders': [
      empty(`${'d/'.repeat(1_000)}f`, 1).concat(
        ...Array.from({ length: 60 }, (_, index) => [{ path: `${String(index)}/${'d/'.repeat(100)}f` }]),
      ),
    ],
  }
  await pullAll(t, images, { limits: { filesPerImage: 5_000 }, variable: 'SANDYARD_IMAGE_MAX_FILES' })
  return {
    tries: 3,
    outcome: 'at a limit of 5,000 files, images of 20,000 and 6,000 files and of 7,000 folders were refused',
  }
})

attack('exhausts overlay mounts with an image of too many layers', FACTS, async (t) => {
  const layers = Array.from({ length: DEFAULT_IMAGE_LIMITS.layersPerImage + 1 }, (_, index) => [
    { path: `f${String(index)}` },
  ])
  await pullAll(t, { 'many-layers': layers }, { limits: {}, variable: 'SANDYARD_IMAGE_MAX_LAYERS' })
  return { tries: 1, outcome: `an image of ${String(layers.length)} layers was refused before any layer was fetched` }
})
