/**
 * Frames of the agent protocol (section 3): a length word, a correlation id, flags and a body. Here only bytes; what a
 * body says is the envelope's business.
 */

/** The fewest bytes that a length word may count: id and flags of an empty body. */
const MIN_FRAME_LENGTH = 5
/** The most bytes that a length word may count: 4 MiB; one more is fatal for the connection. */
export const MAX_FRAME_LENGTH = 4 * 1024 * 1024
/** Length word, id and flags. */
const FRAME_HEAD_BYTES = 9

export const FLAG_TERMINAL = 0x01
export const FLAG_SESSION_START = 0x02
export const FLAG_SHUTDOWN = 0x04

export type Frame = { readonly id: number; readonly flags: number; readonly body: Buffer }

/** A length outside the limits: where the next frame starts can't be known, so the connection is lost. */
export class FrameLengthError extends Error {}

/** The nine bytes before a body of `bodyBytes`. Throws `FrameLengthError` when the frame would be too long. */
export function encodeFrameHead(id: number, flags: number, bodyBytes: number): Buffer {
  const length = MIN_FRAME_LENGTH + bodyBytes
  if (length > MAX_FRAME_LENGTH) throw new FrameLengthError(`a frame of ${String(length)} bytes is over the limit`)
  const head = Buffer.allocUnsafe(FRAME_HEAD_BYTES)
  head.writeUInt32BE(length, 0)
  head.writeUInt32BE(id, 4)
  head.writeUInt8(flags, 8)
  return head
}

/** Cuts a byte stream into frames, however the bytes arrive. Holds at most one unfinished frame and one piece. */
type FrameReader = {
  /** Takes the next bytes and gives the frames that they complete. Throws `FrameLengthError`; then it is unusable. */
  push(piece: Buffer): Generator<Frame, void, undefined>
}

/** A reader at the start of a stream of frames. */
export function makeFrameReader(): FrameReader {
  let pieces: Buffer[] = []
  let heldBytes = 0

  /** Removes the first `count` bytes; joins pieces only when a frame spans several, so that each byte is copied once. */
  const take = (count: number): Buffer => {
    const first = pieces[0]
    const joined = first !== undefined && first.length >= count ? first : Buffer.concat(pieces, heldBytes)
    const kept = joined === first ? pieces.slice(1) : []
    const rest = joined.subarray(count)
    pieces = rest.length === 0 ? kept : [rest, ...kept]
    heldBytes -= count
    return joined.subarray(0, count)
  }
  /** The length word, once its four bytes are here. */
  const peekLength = (): number | null => {
    if (heldBytes < 4) return null
    const first = pieces[0]
    if (first !== undefined && first.length >= 4) return first.readUInt32BE(0)
    pieces = [Buffer.concat(pieces, heldBytes)]
    return pieces[0]?.readUInt32BE(0) ?? null
  }

  return {
    *push(piece) {
      if (piece.length > 0) {
        pieces.push(piece)
        heldBytes += piece.length
      }
      for (;;) {
        const length = peekLength()
        if (length === null) return
        if (length < MIN_FRAME_LENGTH || length > MAX_FRAME_LENGTH) {
          throw new FrameLengthError(`a frame length of ${String(length)} is outside the limits`)
        }
        if (heldBytes < 4 + length) return
        const bytes = take(4 + length)
        yield { id: bytes.readUInt32BE(4), flags: bytes.readUInt8(8), body: bytes.subarray(FRAME_HEAD_BYTES) }
      }
    },
  }
}
