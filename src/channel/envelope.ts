import { CborError, asBytes, asMap, asText, decodeCbor, encodeCbor } from './cbor.ts'
import { encodeFrameHead } from './frame.ts'
import { GENERATION, MESSAGES, type MessageType } from './messages.ts'

/**
 * The maximum size of the data in one frame that we send. It is below the 4 MiB limit of a frame and the 16
 * MiB limit of a WebSocket message.
 */
export const MAX_DATA_BYTES = 1024 * 1024

/** How many bytes of fields take about as long to decode as a small frame. */
const PIECE_BYTES = 128

/** CBOR major types, in the position that they have in the first byte of an item (RFC 8949, 3.1). */
const MAJOR_BYTES = 2 << 5
const MAJOR_TEXT = 3 << 5
/** The largest length that fits into the first byte of an item (RFC 8949, 3). */
const MAX_TINY = 23

/** The encoded bytes before each value: `{"v":` in a map of three, `"t":`, `"p":`, and `{"data":` in a map of one. */
const VERSION_KEY = Buffer.from([0xa3, 0x61, 0x76])
const TYPE_KEY = Buffer.from([0x61, 0x74])
const PAYLOAD_KEY = Buffer.from([0x61, 0x70])
const DATA_KEY = Buffer.from([0xa1, 0x64, 0x64, 0x61, 0x74, 0x61])

/** The body of a frame: the message type, and the payload, which is not decoded yet. */
export type Envelope = { readonly type: string; readonly payload: Uint8Array }

/** Decodes a frame's body and ignores the version `v`. Throws `CborError` when the type or payload is missing. */
export function decodeEnvelope(body: Uint8Array): Envelope {
  const fast = fastDecodeEnvelope(body)
  if (fast !== null) return fast
  const map = asMap(decodeCbor(body))
  return { type: asText(map['t']), payload: asBytes(map['p']) }
}

/** Decodes a `{data}` payload. The result may share the payload's memory. Throws `CborError`. */
export function decodeData(payload: Uint8Array): Buffer {
  const fast = fastDecodeData(payload)
  if (fast !== null) return fast
  const data = asBytes(asMap(decodeCbor(payload))['data'])
  return Buffer.from(data.buffer, data.byteOffset, data.byteLength)
}

/** Encodes a whole frame as one buffer. */
export function encodeMessage(id: number, type: MessageType, payload: Readonly<Record<string, unknown>>): Buffer {
  const encoded = encodeCbor(payload)
  return Buffer.concat([head(id, type, encoded.length), encoded])
}

/**
 * Encodes a frame with a `{data}` payload. Returns the head and `data` separately to avoid copying `data`. Accepts at
 * most `MAX_DATA_BYTES`.
 */
export function encodeData(id: number, type: MessageType, data: Buffer): readonly [Buffer, Buffer] {
  if (data.length > MAX_DATA_BYTES) throw new CborError('more data than one of our frames may carry')
  const map = Buffer.concat([DATA_KEY, cborHead(MAJOR_BYTES, data.length)])
  return [Buffer.concat([head(id, type, map.length + data.length), map]), data]
}

/**
 * The bytes of a frame before its payload: the frame head, `{"v": 7, "t": type, "p":` and the length of the payload.
 */
function head(id: number, type: MessageType, payloadBytes: number): Buffer {
  const name = Buffer.from(type, 'latin1')
  const envelope = Buffer.concat([
    VERSION_KEY,
    Buffer.from([GENERATION]),
    TYPE_KEY,
    cborHead(MAJOR_TEXT, name.length),
    name,
    PAYLOAD_KEY,
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

// The fast path decodes messages in the form that the public client writes: definite lengths, and the keys in the order
// `v`, `t`, `p`. It reads a message in place, whereas the general decoder would copy all channel data twice. For any
// other form, `fastDecodeEnvelope` and `fastDecodeData` return null.

/** Decodes a frame's body in the client's form. The payload is a view of the body. */
export function fastDecodeEnvelope(body: Uint8Array): Envelope | null {
  const bytes = asBuffer(body)
  const version = bytes[VERSION_KEY.length]
  if (!hasAt(bytes, 0, VERSION_KEY) || version === undefined || version > MAX_TINY) return null
  const typeAt = VERSION_KEY.length + 1
  const type = hasAt(bytes, typeAt, TYPE_KEY) ? readString(bytes, typeAt + TYPE_KEY.length, MAJOR_TEXT) : null
  if (type === null || !hasAt(bytes, type.end, PAYLOAD_KEY)) return null
  const payload = readString(bytes, type.end + PAYLOAD_KEY.length, MAJOR_BYTES)
  if (payload?.end !== bytes.length) return null
  return { type: type.content.toString('utf8'), payload: payload.content }
}

/** Decodes a `{data}` payload in the client's form. The result is a view of the payload. */
export function fastDecodeData(payload: Uint8Array): Buffer | null {
  const bytes = asBuffer(payload)
  const data = hasAt(bytes, 0, DATA_KEY) ? readString(bytes, DATA_KEY.length, MAJOR_BYTES) : null
  return data?.end === bytes.length ? data.content : null
}

/**
 * How many small frames take as long to decode as the body of a frame. Fields are decoded one by one, and data in the client's form is
 * not decoded at all.
 */
export function decodingPieces(body: Uint8Array): number {
  if (body.length <= PIECE_BYTES) return 1
  const payload = fastDecodeEnvelope(body)?.payload
  return payload !== undefined && fastDecodeData(payload) !== null ? 1 : body.length / PIECE_BYTES
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

function hasAt(bytes: Buffer, at: number, wanted: Buffer): boolean {
  return bytes.length >= at + wanted.length && wanted.compare(bytes, at, at + wanted.length) === 0
}

/** Reads a string of definite length. Null when it doesn't end within `bytes`. */
function readString(
  bytes: Buffer,
  at: number,
  major: number,
): { readonly content: Buffer; readonly end: number } | null {
  const first = bytes[at]
  if (first === undefined || (first & 0xe0) !== major) return null
  const info = first & 0x1f
  const width = info <= MAX_TINY ? 0 : info <= 26 ? 1 << (info - 24) : null
  if (width === null || at + 1 + width > bytes.length) return null
  const start = at + 1 + width
  const end = start + (width === 0 ? info : bytes.readUIntBE(at + 1, width))
  return end > bytes.length ? null : { content: bytes.subarray(start, end), end }
}
