import { CborError, decodeCbor, encodeCbor } from './cbor.ts'
import { encodeFrameHead } from './frame.ts'
import { GENERATION, MESSAGES } from './messages.ts'
import type { AgentMessageType, MessageType } from './messages.ts'
import { asBytes, asMap, asText } from './fields.ts'
import { fastDecodeData, fastDecodeEnvelope } from './usual-form.ts'

/**
 * The most bytes of data in one frame that this side sends: 1 MiB, well under the 4 MiB of a frame and the 16 MiB of a
 * WebSocket message (sections 1 and 3).
 */
export const MAX_DATA_BYTES = 1024 * 1024

/** The body of a frame: its type in words and its payload, still encoded (section 4). */
export type Envelope = { readonly type: string; readonly payload: Uint8Array }

/** Reads a frame's body. `v` is not looked at (section 13). Throws `CborError` when there is no type or payload. */
export function decodeEnvelope(body: Uint8Array): Envelope {
  const fast = fastDecodeEnvelope(body)
  if (fast !== null) return fast
  const map = asMap(decodeCbor(body))
  return { type: asText(map['t']), payload: asBytes(map['p']) }
}

/** Reads a `{data}` payload; the bytes may be a view of it. Throws `CborError`. */
export function decodeData(payload: Uint8Array): Buffer {
  const fast = fastDecodeData(payload)
  if (fast !== null) return fast
  const data = asBytes(asMap(decodeCbor(payload))['data'])
  return Buffer.from(data.buffer, data.byteOffset, data.byteLength)
}

/** A whole frame of any message type, as one buffer. */
export function encodeMessage(id: number, type: MessageType, payload: Readonly<Record<string, unknown>>): Buffer {
  const encoded = encodeCbor(payload)
  return Buffer.concat([head(id, type, encoded.length), encoded])
}

/** A whole frame that carries `{data}`, as head and data, so that the data are not copied. At most `MAX_DATA_BYTES`. */
export function encodeData(id: number, type: AgentMessageType, data: Buffer): readonly [Buffer, Buffer] {
  if (data.length > MAX_DATA_BYTES) throw new CborError('more data than a frame of ours may carry')
  const map = Buffer.concat([DATA_MAP_HEAD, cborHead(MAJOR_BYTES, data.length)])
  return [Buffer.concat([head(id, type, map.length + data.length), map]), data]
}

const MAJOR_BYTES = 2 << 5
const MAJOR_TEXT = 3 << 5

/** `{"data":` */
const DATA_MAP_HEAD = Buffer.from([0xa1, 0x64, 0x64, 0x61, 0x74, 0x61])

/** Everything before the payload's own bytes: frame head, `{"v": 7, "t": type, "p":` and the payload's length. */
function head(id: number, type: MessageType, payloadBytes: number): Buffer {
  const name = Buffer.from(type, 'latin1')
  const envelope = Buffer.concat([
    Buffer.from([0xa3, 0x61, 0x76, GENERATION, 0x61, 0x74]),
    cborHead(MAJOR_TEXT, name.length),
    name,
    Buffer.from([0x61, 0x70]),
    cborHead(MAJOR_BYTES, payloadBytes),
  ])
  return Buffer.concat([encodeFrameHead(id, MESSAGES[type].flags, envelope.length + payloadBytes), envelope])
}

/** The head of a CBOR string in its shortest form (RFC 8949, 3 and 4.2.1). */
function cborHead(major: number, length: number): Buffer {
  if (length < 24) return Buffer.from([major | length])
  if (length < 0x100) return Buffer.from([major | 24, length])
  if (length < 0x1_0000) return Buffer.from([major | 25, length >> 8, length & 0xff])
  const wide = Buffer.from([major | 26, 0, 0, 0, 0])
  wide.writeUInt32BE(length, 1)
  return wide
}
