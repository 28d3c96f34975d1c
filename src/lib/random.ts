import { randomBytes } from 'node:crypto'

/** Randomness as an argument, so that a fault test can replay a run. */
export interface Random {
  bytes(count: number): Buffer
}

/** The operating system's generator; safe for keys. */
export const systemRandom: Random = { bytes: (count) => randomBytes(count) }

/** A whole number in `[0, below)` without modulo bias; `below` is at most 2^32. */
export function randomBelow(random: Random, below: number): number {
  const limit = Math.floor(0x1_0000_0000 / below) * below
  for (;;) {
    const value = random.bytes(4).readUInt32BE()
    if (value < limit) return value % below
  }
}
