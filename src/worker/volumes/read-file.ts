import type { FileHandle } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { callbackify } from 'node:util'

/** As much as is read at once: larger chunks are no faster (page cache, 2026-11), and each stream holds two of them. */
const CHUNK_BYTES = 256 * 1024

/**
 * The first `sizeBytes` of an open file, read at the pace of whoever reads the stream. A file that has become shorter
 * breaks the stream off with an error, one that grows is cut. Ending or destroying the stream closes the file.
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
