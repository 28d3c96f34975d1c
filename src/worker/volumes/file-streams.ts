import type { BigIntStats } from 'node:fs'
import type { FileHandle } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { callbackify } from 'node:util'
import { FILE_MODE, type Ownership, createExclusively, setOwnership } from './descriptors.ts'
import { translateErrors } from './file-errors.ts'
import type { StagedFile } from './replace-atomically.ts'

/**
 * The size of one read. Larger chunks are not faster (files in the page cache, 2026-11), and each stream keeps two
 * chunks in memory.
 */
const CHUNK_BYTES = 256 * 1024

/**
 * Streams the first `sizeBytes` bytes of an open file at the reader's pace. The stream fails if the file becomes
 * shorter, and ignores growth. Ending or destroying the stream closes the file.
 */
export function streamFile(handle: FileHandle, sizeBytes: number): Readable {
  let sentBytes = 0
  const readMore = async (stream: Readable): Promise<void> => {
    const length = Math.min(CHUNK_BYTES, sizeBytes - sentBytes)
    if (length === 0) {
      stream.push(null)
      return
    }
    const { bytesRead, buffer } = await handle.read(Buffer.allocUnsafeSlow(length), 0, length, sentBytes)
    if (bytesRead === 0) throw new Error('the file became shorter while it was read')
    sentBytes += bytesRead
    stream.push(buffer.subarray(0, bytesRead))
  }
  return new Readable({
    highWaterMark: CHUNK_BYTES,
    read() {
      readMore(this).catch((error: unknown) => this.destroy(error instanceof Error ? error : new Error(String(error))))
    },
    destroy(error, done) {
      callbackify(() => handle.close())((closeError) => {
        done(error ?? closeError)
      })
    },
  })
}

/**
 * The mode bits that a new file copies from the file that it replaces. Set-user-id is cleared, as the kernel does on a
 * write.
 */
const KEPT_MODE_BITS = 0o1777n

/** The content of a file to write. */
export type Content = {
  readonly path: string
  readonly content: Readable
  /** Called after each `SPACE_STEP_BYTES`. Rejects if the disk has no space left for files. */
  readonly requireSpace: () => Promise<void>
}

const SPACE_STEP_BYTES = 8 * 1024 * 1024

/**
 * Writes a stream to a new file at the pace of the disk. If writing fails, the rest of `content` stays unread and the
 * stream stays open, so that the error can be sent to the client. If the stream itself breaks, rejects with a separate
 * error.
 */
export async function stageFile(
  folder: FileHandle,
  name: string,
  from: Content & { readonly uidShift: number },
): Promise<StagedFile & { readonly sizeBytes: number }> {
  const handle = await translateErrors(from.path, () => createExclusively(folder, name))
  try {
    const sizeBytes = await writeStream(handle, from)
    return {
      sizeBytes,
      async finish(replaced) {
        await setOwnership(handle, ownershipAfter(replaced, from.uidShift))
        await handle.sync() // the content must be durable before the name
      },
      [Symbol.asyncDispose]: () => handle.close(),
    }
  } catch (error) {
    await handle.close()
    throw error
  }
}

async function writeStream(handle: FileHandle, { path, content, requireSpace }: Content): Promise<number> {
  const chunks: AsyncIterator<Buffer> = content.iterator({ destroyOnReturn: false })
  let sizeBytes = 0
  let uncheckedBytes = 0
  try {
    for (let next = await nextChunk(chunks, path); next.done !== true; next = await nextChunk(chunks, path)) {
      const chunk = next.value
      await translateErrors(path, () => writeAll(handle, chunk))
      sizeBytes += chunk.length
      uncheckedBytes += chunk.length
      if (uncheckedBytes < SPACE_STEP_BYTES) continue
      uncheckedBytes = 0
      await requireSpace()
    }
  } finally {
    await chunks.return?.()
  }
  return sizeBytes
}

/** Writes a whole chunk. `FileHandle.writeFile` is half as fast (64 KiB chunks, Node 24, 2026-11). */
async function writeAll(handle: FileHandle, chunk: Buffer): Promise<void> {
  for (let at = 0; at < chunk.length;) at += (await handle.write(chunk, at)).bytesWritten
}

/**
 * Reads the next chunk. A failure of the sender is wrapped in a separate error, because it may have the same error code
 * as a failure of the disk.
 */
async function nextChunk(chunks: AsyncIterator<Buffer>, path: string): Promise<IteratorResult<Buffer>> {
  try {
    return await chunks.next()
  } catch (error) {
    throw new Error(`the content for '${path}' ended early`, { cause: error })
  }
}

function ownershipAfter(replaced: BigIntStats | null, uidShift: number): Ownership {
  if (replaced === null) return { uid: uidShift, gid: uidShift, mode: FILE_MODE }
  return { uid: Number(replaced.uid), gid: Number(replaced.gid), mode: Number(replaced.mode & KEPT_MODE_BITS) }
}
