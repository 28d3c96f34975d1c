/** Writers for the content of new files. Each writes the bytes in order, from the start of the file. */
import { constants } from 'node:fs'
import { open, type FileHandle } from 'node:fs/promises'
import { descriptorPath, writeAt } from './descriptors.ts'

/** Disposing waits for a write that is under way. It doesn't close the file. */
export type ContentWriter = AsyncDisposable & {
  /** Resolves when the chunks may be used again. Rejects if this write or one before it failed. */
  write(chunks: readonly Buffer[]): Promise<void>
  /** Writes what is left. Call it once, at the end of the content. */
  end(): Promise<void>
}

/** Creates a writer that writes through the kernel's page cache. */
export function makeCachedWriter(handle: FileHandle): ContentWriter {
  return {
    async write(chunks) {
      for (let left = chunks; left.length > 0;) left = withoutFirst(left, (await handle.writev(left)).bytesWritten)
    },
    end: () => Promise.resolve(),
    [Symbol.asyncDispose]: () => Promise.resolve(),
  }
}

/** Removes the first bytes of a list of chunks, and all chunks that are empty then. */
function withoutFirst(chunks: readonly Buffer[], bytes: number): readonly Buffer[] {
  let skipped = bytes
  return chunks.flatMap((chunk) => {
    const rest = chunk.subarray(skipped)
    skipped = Math.max(0, skipped - chunk.length)
    return rest.length === 0 ? [] : [rest]
  })
}

/**
 * Creates a writer that writes around the page cache. The file system must support direct writes. Chunks are copied into two buffers: one
 * fills while the other one is written. What does not fill a buffer is written through the page cache, so small files stay in it.
 *
 * 256 MiB into a pool of btrfs: 0.19 s of wall time and 0.02 s of processor time, instead of 0.49 and 0.39 with the page cache and a sync
 * (2026-11). Null if all buffers are in use.
 */
export function makeDirectWriter(handle: FileHandle, buffers: AlignedBuffers): ContentWriter | null {
  const pair = buffers.take()
  if (pair === null) return null
  let [filling, waiting] = pair
  let filledBytes = 0
  let position = 0
  let direct: FileHandle | null = null
  let writing: Promise<void> = Promise.resolve()
  let isDisposed = false

  async function writeDirectly(buffer: Buffer, at: number): Promise<void> {
    direct ??= await open(descriptorPath(handle), constants.O_WRONLY | constants.O_DIRECT)
    await writeAt(direct, buffer, at)
  }

  async function changeBuffers(): Promise<void> {
    await writing
    if (isDisposed) throw new Error('the writer was disposed of during a write')
    writing = writeDirectly(filling, position)
    writing.catch(() => undefined) // the next call rejects with it
    ;[filling, waiting] = [waiting, filling]
    position += filledBytes
    filledBytes = 0
  }

  return {
    async write(chunks) {
      for (const chunk of chunks)
        for (let at = 0; at < chunk.length;) {
          const copied = chunk.copy(filling, filledBytes, at)
          at += copied
          filledBytes += copied
          if (filledBytes === filling.length) await changeBuffers()
        }
    },
    async end() {
      await writing
      await writeAt(handle, filling.subarray(0, filledBytes), position)
    },
    async [Symbol.asyncDispose]() {
      isDisposed = true
      await writing.catch(() => undefined) // until then the kernel reads a buffer
      buffers.release(pair)
      await direct?.close()
    },
  }
}

/** The size of a buffer, and so of a direct write. */
const BUFFER_BYTES = 1024 * 1024
/** The number of pairs that exist at most. They are kept. */
const PAIRS_MAX = 4
/** The unit of `WebAssembly.Memory`. */
const WASM_PAGE_BYTES = 64 * 1024

type Pair = readonly [Buffer, Buffer]

/** Pairs of buffers at whole pages of memory, as direct writes need them. They are made when they are needed, and used again. */
export type AlignedBuffers = {
  /** Null if `PAIRS_MAX` are in use. */
  readonly take: () => Pair | null
  /** Takes back a pair that nobody uses any more. */
  readonly release: (pair: Pair) => void
}

/** Makes no buffers yet. */
export function makeAlignedBuffers(): AlignedBuffers {
  const free: Pair[] = []
  let made = 0
  return {
    take() {
      const pair = free.pop()
      if (pair !== undefined) return pair
      if (made === PAIRS_MAX) return null
      made += 1
      return makePair()
    },
    release: (pair) => {
      free.push(pair)
    },
  }
}

/** Node's types lack it. */
declare const WebAssembly: {
  readonly Memory: new (size: { readonly initial: number }) => { readonly buffer: ArrayBuffer }
}

/** Node can't align a buffer, but the memory of WebAssembly begins at a page. */
function makePair(): Pair {
  const { buffer } = new WebAssembly.Memory({ initial: (2 * BUFFER_BYTES) / WASM_PAGE_BYTES })
  return [Buffer.from(buffer, 0, BUFFER_BYTES), Buffer.from(buffer, BUFFER_BYTES)]
}
