/** Bytes that wait for a reader, in order. They take about as much memory if they come in pieces of a byte. */
export type PieceQueue = {
  /** Adds a copy of a piece, which may be part of a larger buffer. */
  add(piece: Buffer): void
  /** Takes everything out, as one buffer. */
  take(): Buffer
  /** How many bytes wait. */
  readonly bytes: number
}

/** So many pieces are joined. A piece of a byte takes some 220 bytes of memory (2026-11). */
const JOINED_PIECES = 256

/** Creates an empty queue. */
export function makePieceQueue(): PieceQueue {
  let joined: Buffer[] = []
  let latest: Buffer[] = []
  let bytes = 0
  return {
    add(piece) {
      if (piece.length === 0) return
      bytes += piece.length
      latest.push(Buffer.from(piece))
      if (latest.length < JOINED_PIECES) return
      joined.push(Buffer.concat(latest))
      latest = []
    },
    take() {
      const [first, ...others] = [...joined, ...latest]
      joined = []
      latest = []
      bytes = 0
      return first === undefined ? Buffer.alloc(0) : others.length === 0 ? first : Buffer.concat([first, ...others])
    },
    get bytes() {
      return bytes
    },
  }
}
