import type { Duplex } from 'node:stream'
import type { Pace } from '../turns/piece-pacer.ts'

/** The sizes of the parts: first the smallest, then twice the last one while a part has few pieces. */
export const PART_MIN_BYTES = 1024
const FEW_PIECES = 16

type PaceOfReads = { readonly pace: Pace; readonly partMaxBytes: number }

/** A connection that is read in parts. */
export type PacedReads = {
  /** Counts pieces of the part, one by default. Returns whether the part has many. */
  readonly count: (pieces?: number) => boolean
  /** Sets the size of the next part, in bytes. */
  readonly setSize: (bytes: number) => void
  /** Takes bytes that were read before. Call it before anybody reads the connection. */
  readonly begin: (bytes: Buffer) => void
}

/**
 * Gives whoever reads a connection its bytes in parts, and lets the rest wait after a part with many pieces. Call it before anybody reads
 * the connection. Its reader counts the pieces of the part that it has got.
 */
export function paceReads(connection: Duplex, { pace, partMaxBytes }: PaceOfReads): PacedReads {
  const push = connection.push.bind(connection)
  const read = connection._read.bind(connection)
  let held: Buffer[] | null = null
  let hasEnded = false
  let mayGoOn = true
  let [size, pieces] = [PART_MIN_BYTES, 0]

  const pushParts = (bytes: Buffer): boolean => {
    let wantsMore = true
    for (let at = 0; at < bytes.length;) {
      if (connection.destroyed) return false // the rest is of no use
      if (!mayGoOn || pace.isTurnFull() || (at > 0 && connection.isPaused())) {
        hold(bytes.subarray(at))
        return false
      }
      const part = bytes.subarray(at, at + size)
      at += part.length
      pieces = 0
      wantsMore = push(part)
      size = pieces > FEW_PIECES ? PART_MIN_BYTES : Math.max(size, Math.min(2 * size, partMaxBytes))
    }
    return wantsMore
  }

  const hold = (rest: Buffer): void => {
    held = [rest]
    if (mayGoOn && !pace.isTurnFull()) connection.once('resume', goOn)
    else
      void pace
        .wait(() => connection.destroyed)
        .then(() => void (connection.isPaused() ? connection.once('resume', goOn) : goOn()))
  }

  const goOn = (): void => {
    const rest = Buffer.concat(held ?? [])
    held = null
    mayGoOn = true
    const wantsMore = pushParts(rest)
    if (held !== null) return
    if (hasEnded) push(null)
    else if (wantsMore) read(0)
  }

  connection.push = (piece: Buffer | null) => {
    if (held === null) return piece === null ? push(null) : pushParts(piece)
    if (piece === null) hasEnded = true
    else held.push(piece)
    return false
  }
  connection._read = (bytes) => void (held === null && read(bytes))
  return {
    count(more = 1) {
      pieces += more
      if (!pace.count(more)) mayGoOn = false
      return pieces > FEW_PIECES
    },
    setSize(bytes) {
      size = bytes
    },
    begin: hold,
  }
}
