import { CborError, asBytes, asMap, asText, decodeCbor, encodeCbor } from './cbor.ts'
import { encodeFrameHead } from './frame.ts'
import { type AgentMessageType, GENERATION, MESSAGES, type MessageType } from './messages.ts'

/**
 * The most bytes of data in one frame that this side sends: 1 MiB, well under the 4 MiB of a frame and the 16 MiB of a
 * WebSocket message (sections 1 and 3).
 */
export const MAX_DATA_BYTES = 1024 * 1024

/** CBOR major types, in the position that they have in the first byte of an item (RFC 8949, 3.1). */
const MAJOR_BYTES = 2 << 5
const MAJOR_TEXT = 3 << 5
/** The largest length that fits into the first byte itself (RFC 8949, 3). */
const MAX_TINY = 23

/** The bytes before a value: `{"v":` of a map of three, `"t":`, `"p":`, and `{"data":` of a map of one. */
const VERSION_KEY = Buffer.from([0xa3, 0x61, 0x76])
const TYPE_KEY = Buffer.from([0x61, 0x74])
const PAYLOAD_KEY = Buffer.from([0x61, 0x70])
const DATA_KEY = Buffer.from([0xa1, 0x64, 0x64, 0x61, 0x74, 0x61])

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
  const map = Buffer.concat([DATA_KEY, cborHead(MAJOR_BYTES, data.length)])
  return [Buffer.concat([head(id, type, map.length + data.length), map]), data]
}

/** Everything before the payload's own bytes: frame head, `{"v": 7, "t": type, "p":` and the payload's length. */
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

// Messages in the very form in which the public client writes them (section 4: definite lengths, keys in order). They are
// read in place, which the general decoder doesn't: it would copy all data that pass through a channel twice. What has
// another form is null here, and that decoder's business.

/** A frame's body in the usual form; the payload is a view of it. */
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

/** The bytes of a `{data}` payload in the usual form, as a view of it. */
export function fastDecodeData(payload: Uint8Array): Buffer | null {
  const bytes = asBuffer(payload)
  const data = hasAt(bytes, 0, DATA_KEY) ? readString(bytes, DATA_KEY.length, MAJOR_BYTES) : null
  return data?.end === bytes.length ? data.content : null
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

function hasAt(bytes: Buffer, at: number, wanted: Buffer): boolean {
  return bytes.length >= at + wanted.length && wanted.compare(bytes, at, at + wanted.length) === 0
}

/** A string of definite length that ends within the bytes. */
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
