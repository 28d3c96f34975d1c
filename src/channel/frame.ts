/**
 * Encodes and splits frames of the agent protocol. A frame is a length (u32), a correlation id (u32), flags (u8) and a
 * body. `envelope.ts` decodes the body.
 */

/** The smallest value of a frame's length field: the id and the flags, with an empty body. */
const MIN_FRAME_LENGTH = 5
/** The largest allowed value of a frame's length field. A frame with a larger value ends the connection. */
export const MAX_FRAME_LENGTH = 4 * 1024 * 1024
/** The size of the length, the id and the flags. */
const FRAME_HEAD_BYTES = 9

export const FLAG_TERMINAL = 0x01
export const FLAG_SESSION_START = 0x02
export const FLAG_SHUTDOWN = 0x04

export type Frame = { readonly id: number; readonly flags: number; readonly body: Buffer }

/** A frame length outside the limits. The start of the next frame is then unknown, so the connection must end. */
export class FrameLengthError extends Error {}

/**
 * Encodes the nine bytes before a body of `bodyBytes` bytes. Throws `FrameLengthError` when the frame would be too
 * long.
 */
export function encodeFrameHead(id: number, flags: number, bodyBytes: number): Buffer {
  const length = MIN_FRAME_LENGTH + bodyBytes
  if (length > MAX_FRAME_LENGTH) throw new FrameLengthError(`a frame of ${String(length)} bytes is over the limit`)
  const head = Buffer.allocUnsafe(FRAME_HEAD_BYTES)
  head.writeUInt32BE(length, 0)
  head.writeUInt32BE(id, 4)
  head.writeUInt8(flags, 8)
  return head
}

/**
 * Splits a byte stream, which arrives in pieces, into frames. Keeps at most one unfinished frame and one piece in
 * memory.
 */
type FrameReader = {
  /**
   * Accepts the next piece of the stream and yields the frames that it completes. After a `FrameLengthError` the reader
   * is unusable.
   */
  push(piece: Buffer): Generator<Frame, void, undefined>
}

/** Creates a reader for a new stream of frames. */
export function makeFrameReader(): FrameReader {
  let pieces: Buffer[] = []
  let heldBytes = 0

  /**
   * Removes and returns the first `count` bytes. Joins pieces only when a frame spans several, so each byte is copied
   * at most once.
   */
  const take = (count: number): Buffer => {
    const first = pieces[0]
    const joined = first !== undefined && first.length >= count ? first : Buffer.concat(pieces, heldBytes)
    const kept = joined === first ? pieces.slice(1) : []
    const rest = joined.subarray(count)
    pieces = rest.length === 0 ? kept : [rest, ...kept]
    heldBytes -= count
    return joined.subarray(0, count)
  }
  /** The length of the next frame. Null until its four bytes have arrived. */
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
