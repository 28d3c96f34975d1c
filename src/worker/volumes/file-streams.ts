import type { BigIntStats } from 'node:fs'
import type { FileHandle } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { callbackify } from 'node:util'
import { FILE_MODE, type Ownership, createExclusively, setOwnership } from './descriptors.ts'
import { translateErrors } from './file-errors.ts'
import type { StagedFile } from './replace-atomically.ts'

/** The size of one read. Larger chunks are no faster (page cache, 2026-11), and each stream holds two of them. */
const CHUNK_BYTES = 256 * 1024

/**
 * Streams the first `sizeBytes` of an open file at the reader's pace. The stream fails when the file became shorter;
 * growth is ignored. Ending or destroying the stream closes the file.
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

/** The mode bits that a replaced file passes on. Set-user-id is cleared, as the kernel does on a write. */
const KEPT_MODE_BITS = 0o1777n

/**
 * Writes a stream to a new file at the pace of the disk. When it fails, the rest of `content` stays unread and the
 * stream open, so the client can be told. When the stream breaks, it rejects with an error of its own.
 */
export async function stageFile(
  folder: FileHandle,
  name: string,
  from: { readonly path: string; readonly content: Readable; readonly uidShift: number },
): Promise<StagedFile & { readonly sizeBytes: number }> {
  const handle = await translateErrors(from.path, () => createExclusively(folder, name))
  try {
    const sizeBytes = await writeStream(handle, from)
    return {
      sizeBytes,
      async finish(replaced) {
        await setOwnership(handle, ownershipAfter(replaced, from.uidShift))
        await handle.sync() // the content must be durable before the name is
      },
      [Symbol.asyncDispose]: () => handle.close(),
    }
  } catch (error) {
    await handle.close()
    throw error
  }
}

async function writeStream(
  handle: FileHandle,
  { path, content }: { readonly path: string; readonly content: Readable },
): Promise<number> {
  const chunks: AsyncIterator<Buffer> = content.iterator({ destroyOnReturn: false })
  let sizeBytes = 0
  try {
    for (let next = await nextChunk(chunks, path); next.done !== true; next = await nextChunk(chunks, path)) {
      const chunk = next.value
      await translateErrors(path, () => writeAll(handle, chunk))
      sizeBytes += chunk.length
    }
  } finally {
    await chunks.return?.()
  }
  return sizeBytes
}

/** `FileHandle.writeFile` is half as fast (64 KiB chunks, Node 24, 2026-11). */
async function writeAll(handle: FileHandle, chunk: Buffer): Promise<void> {
  for (let at = 0; at < chunk.length;) at += (await handle.write(chunk, at)).bytesWritten
}

/** Sets a failure of the sender apart from one of the disk, because they may have the same code. */
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
