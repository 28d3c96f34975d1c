import { createHash } from 'node:crypto'

/** The sizes of chunks. A boundary comes after about `2 ** MASK_BITS` bytes beyond the minimum. */
const MIN_BYTES = 256 * 1024
const MAX_BYTES = 8 * 1024 * 1024
const MASK_BITS = 19
const MASK = 0xffff_ffff << (32 - MASK_BITS)

/**
 * Cuts a stream into chunks where its content says so: where a hash of the last 32 bytes has `MASK_BITS` zeros. Bytes that
 * are inserted somewhere therefore change only the chunks there, and a later backup finds all others stored.
 */
export async function* cutIntoChunks(stream: AsyncIterable<Uint8Array>): AsyncGenerator<Buffer> {
  const chunk = Buffer.allocUnsafe(MAX_BYTES)
  let length = 0
  let hash = 0
  for await (const piece of stream) {
    let from = 0
    while (from < piece.length) {
      // No boundary is possible within the minimum, so those bytes need no hash.
      const unhashed = Math.min(Math.max(MIN_BYTES - length, 0), piece.length - from)
      let to = from + unhashed
      const end = Math.min(piece.length, from + MAX_BYTES - length)
      let isBoundary = false
      while (to < end && !isBoundary) {
        hash = ((hash << 1) + (GEAR[piece[to] ?? 0] ?? 0)) | 0
        isBoundary = (hash & MASK) === 0
        to += 1
      }
      chunk.set(piece.subarray(from, to), length)
      length += to - from
      from = to
      if (isBoundary || length === MAX_BYTES) {
        yield Buffer.from(chunk.subarray(0, length))
        length = 0
        hash = 0
      }
    }
  }
  if (length > 0) yield Buffer.from(chunk.subarray(0, length))
}

/** A random number for each byte value. Other numbers would only make one backup share nothing with the one before. */
const GEAR = Int32Array.from({ length: 256 }, (_, byte) =>
  createHash('sha256')
    .update(`sandyard chunk ${String(byte)}`)
    .digest()
    .readInt32BE(),
)
