import { makeMessageReader, type MessageReader } from './length-prefixed.ts'

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

/** Creates a reader for a new stream of frames. It throws `FrameLengthError`. */
export function makeFrameReader(): MessageReader<Frame> {
  return makeMessageReader({
    headBytes: FRAME_HEAD_BYTES,
    checkLength,
    toMessage: (head, body) => ({ id: head.readUInt32BE(4), flags: head.readUInt8(8), body }),
  })
}

function checkLength(length: number): void {
  if (length < MIN_FRAME_LENGTH || length > MAX_FRAME_LENGTH)
    throw new FrameLengthError(`a frame length of ${String(length)} is outside the limits`)
}
