import { randomBytes } from 'node:crypto'

/**
 * A source of randomness. Tests that inject faults replace it with a seeded generator, so that a run can be repeated.
 */
export interface Random {
  bytes(count: number): Buffer
}

/** The operating system's generator, which is secure enough for keys. */
export const systemRandom: Random = { bytes: (count) => randomBytes(count) }

/** The number of bytes that are read ahead. */
const BUFFER_BYTES = 4096
/** The largest request that is served from the buffer. Larger requests are for keys, which are never read ahead. */
const MAX_BUFFERED_BYTES = 16

/** Reads randomness ahead in blocks, because each call of the system's generator takes 1 to 2 us (2026-11). */
export function bufferedRandom(random: Random): Random {
  let buffer: Buffer = Buffer.alloc(0)
  return {
    bytes(count) {
      if (count > MAX_BUFFERED_BYTES) return random.bytes(count)
      if (buffer.length < count) buffer = random.bytes(BUFFER_BYTES)
      const drawn = buffer.subarray(0, count)
      buffer = buffer.subarray(count) // no byte is used twice
      return drawn
    },
  }
}

/** An integer in `[0, below)` without modulo bias; `below` is at most 2^32. */
export function randomBelow(random: Random, below: number): number {
  const limit = Math.floor(0x1_0000_0000 / below) * below
  for (;;) {
    const value = random.bytes(4).readUInt32BE()
    if (value < limit) return value % below
  }
}
