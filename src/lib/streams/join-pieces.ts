/** Smaller pieces are worth joining: whoever takes them spends more time on a piece than on its bytes. */
const SMALL_BYTES = 1024

/** Joins small pieces of a stream that come in the same turn of the event loop. */
export type PieceJoiner = {
  /** Keeps a piece if it is small. Returns whether it did. At the end of the turn, what was kept is pushed as one. */
  keepSmall(piece: Buffer): boolean
  /** Pushes what was kept. Call it before another piece is pushed. */
  pushKept(): void
}

/** Creates a joiner that has kept nothing yet. */
export function makePieceJoiner(push: (joined: Buffer) => void): PieceJoiner {
  let kept: Buffer[] = []
  const pushKept = (): void => {
    if (kept.length === 0) return
    const joined = Buffer.concat(kept)
    kept = []
    push(joined)
  }
  return {
    pushKept,
    keepSmall(piece) {
      if (piece.length >= SMALL_BYTES) return false
      if (kept.push(piece) === 1) setImmediate(pushKept)
      return true
    },
  }
}
