import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { open, type FileHandle } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import fc from 'fast-check'
import { systemRandom } from '../../../src/lib/random.ts'
import {
  makeAlignedBuffers,
  makeCachedWriter,
  makeDirectWriter,
  type AlignedBuffers,
  type ContentWriter,
} from '../../../src/worker/volumes/content-writer.ts'

const MIB = 1024 * 1024
const PAIRS = 4

const dir = mkdtempSync(join(tmpdir(), 'sandyard-writer-'))
const path = join(dir, 'file')
after(() => {
  rmSync(dir, { recursive: true })
})

function directWriter(handle: FileHandle, buffers: AlignedBuffers): ContentWriter {
  return makeDirectWriter(handle, buffers) ?? assert.fail('all buffers are in use')
}

/** Sizes of chunks: some fill buffers of 1 MiB exactly, and others cross from one to the next. */
const sizes = fc.array(
  fc.oneof(
    fc.constantFrom(1, 4096, 64 * 1024, MIB - 1, MIB, MIB + 1, 2 * MIB + 4097),
    fc.integer({ min: 1, max: 300_000 }),
  ),
  { maxLength: 6 },
)

for (const [how, makeWriter] of [
  ['through the page cache', makeCachedWriter],
  ['around the page cache', directWriter],
] as const) {
  test(`a file has the bytes of all chunks, ${how}, and the chunks may be used again after each write`, async () => {
    const buffers = makeAlignedBuffers()
    await fc.assert(
      fc.asyncProperty(fc.array(sizes, { maxLength: 4 }), async (writes) => {
        const contents = writes.map((lengths) => lengths.map((length) => systemRandom.bytes(length)))
        const whole = Buffer.concat(contents.flat())
        await using handle = await open(path, 'w')
        await using writer = makeWriter(handle, buffers)
        for (const chunks of contents) {
          await writer.write(chunks)
          for (const chunk of chunks) chunk.fill(0)
        }
        await writer.end()
        assert.ok(readFileSync(path).equals(whole))
      }),
      { numRuns: 40 },
    )
  })
}

test('a large file leaves only its end in the page cache, and a small one is there', async () => {
  const buffers = makeAlignedBuffers()
  for (const [size, cached] of [
    [5 * MIB + 5_000, 8_192],
    [500_000, 503_808],
  ] as const) {
    await using handle = await open(path, 'w')
    await using writer = directWriter(handle, buffers)
    await writer.write([systemRandom.bytes(size)])
    await writer.end()
    await handle.sync()
    const pages = execFileSync('fincore', ['--bytes', '--noheadings', '--output', 'RES', path], { encoding: 'utf8' })
    assert.equal(Number(pages), cached)
  }
})

test('four files are written around the page cache at once, and another one when a writer is disposed of', async () => {
  const buffers = makeAlignedBuffers()
  await using handle = await open(path, 'w')
  const writers = Array.from({ length: PAIRS }, () => directWriter(handle, buffers))
  assert.equal(makeDirectWriter(handle, buffers), null)
  await writers[0]?.[Symbol.asyncDispose]()
  const next = directWriter(handle, buffers)
  assert.equal(makeDirectWriter(handle, buffers), null)
  for (const writer of [...writers.slice(1), next]) await writer[Symbol.asyncDispose]()
})

test('a writer that is disposed of during a write begins no further one, because others use its buffers then', async () => {
  await using handle = await open(path, 'w')
  const writer = directWriter(handle, makeAlignedBuffers())
  const writing = assert.rejects(writer.write([systemRandom.bytes(3 * MIB)]), /disposed of/)
  await writer[Symbol.asyncDispose]()
  await writing
  assert.equal((await handle.stat()).size, 0)
})

test('after a write that failed, the writer rejects with its error', async () => {
  const handle = await open(path, 'w')
  const writer = directWriter(handle, makeAlignedBuffers())
  await handle.close() // it can't be opened again for direct writes then
  await assert.rejects(writer.write([systemRandom.bytes(3 * MIB)]), { code: 'ENOENT' })
  await assert.rejects(writer.end(), { code: 'ENOENT' })
  await writer[Symbol.asyncDispose]()
})
