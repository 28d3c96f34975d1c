import assert from 'node:assert/strict'
import { constants, mkdirSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs'
import { open, type FileHandle } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { after, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import fc from 'fast-check'
import { systemRandom } from '../../../src/lib/random.ts'
import {
  makeAlignedBuffers,
  makeCachedWriter,
  makeDirectWriter,
  type AlignedBuffers,
  type ContentWriter,
} from '../../../src/worker/volumes/content-writer.ts'
import { makeVolumeFiles } from '../../../src/worker/volumes/volume-files.ts'
import { namesBeneath, UID_SHIFT } from './volume-folder.ts'

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

test('a large file is written around the page cache, and a small one is not', async () => {
  const buffers = makeAlignedBuffers()
  for (const [size, directWriters] of [
    [MIB, 1],
    [MIB - 1, 0],
  ] as const) {
    await using handle = await open(path, 'w')
    await using writer = directWriter(handle, buffers)
    await writer.write([systemRandom.bytes(size)])
    await writer.end()
    assert.equal(countDirectWriters(), directWriters)
  }
})

/** How many descriptors of this process write the file directly. */
function countDirectWriters(): number {
  return readdirSync('/proc/self/fd').filter((fd) => {
    try {
      if (readlinkSync(`/proc/self/fd/${fd}`) !== path) return false
      const [, flags = ''] = /^flags:\t(\d+)$/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8')) ?? []
      return (parseInt(flags, 8) & constants.O_DIRECT) !== 0
    } catch {
      return false // the descriptor that lists the folder is closed already
    }
  }).length
}

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

test('buffers come back when the write that reads them has ended', async () => {
  const buffers = makeAlignedBuffers()
  await using handle = await open(path, 'w')
  const writer = directWriter(handle, buffers)
  for (let taken = 1; taken < PAIRS; taken++) assert.ok(buffers.take() !== null)
  await writer.write([systemRandom.bytes(MIB)]) // resolves before it is on the disk
  const disposed = writer[Symbol.asyncDispose]()
  while (buffers.take() === null) await setImmediate()
  assert.equal((await handle.stat()).size, MIB)
  await disposed
})

test('after a write that failed, the writer rejects with its error', async () => {
  const handle = await open(path, 'w')
  const writer = directWriter(handle, makeAlignedBuffers())
  await handle.close() // it can't be opened again for direct writes then
  await assert.rejects(writer.write([systemRandom.bytes(3 * MIB)]), { code: 'ENOENT' })
  await assert.rejects(writer.end(), { code: 'ENOENT' })
  await writer[Symbol.asyncDispose]()
})

test('files that are written at once, of which some break, never get bytes of each other', async () => {
  const root = join(dir, 'volume')
  mkdirSync(root)
  const files = makeVolumeFiles({ root, uidShift: UID_SHIFT, random: systemRandom, buffers: makeAlignedBuffers() })
  const kept = new Map<string, Buffer>()
  /** Each second write takes the buffers of one that has just broken. */
  const writeInTurn = async (lane: number): Promise<void> => {
    for (let turn = 0; turn < 6; turn++) {
      const name = `${String(lane)}-${String(turn)}`
      const content = systemRandom.bytes(3 * MIB + turn * 100_001)
      const breaks = turn % 2 === 0
      const write = files.write(`/${name}`, Readable.from(piecesOf(content, breaks), { objectMode: false }))
      if (breaks) await assert.rejects(write, /ended early/)
      else {
        await write
        kept.set(name, content)
      }
    }
  }
  await Promise.all(Array.from({ length: 3 * PAIRS }, (_, lane) => writeInTurn(lane)))
  assert.deepEqual(namesBeneath(root), [...kept.keys()].toSorted())
  for (const [name, content] of kept) assert.ok(readFileSync(join(root, name)).equals(content), name)
})

/** The pieces of a content. If it breaks, an error follows its first half. */
function* piecesOf(content: Buffer, breaks: boolean): Generator<Buffer> {
  const end = breaks ? content.length / 2 : content.length
  for (let at = 0; at < end; at += 700_001) yield content.subarray(at, Math.min(at + 700_001, end))
  if (breaks) throw new Error('the client left')
}
