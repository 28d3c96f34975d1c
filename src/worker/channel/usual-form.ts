import type { Envelope } from './envelope.ts'

// Messages in the very form in which the public client writes them (section 4: definite lengths, keys in order). They are
// read in place, which the general decoder doesn't: it would copy all data that pass through a channel twice. What has
// another form is null here, and that decoder's business.

const MAJOR_BYTES = 2 << 5
const MAJOR_TEXT = 3 << 5

/** A map of three with the key `v`; the keys `t` and `p`; a map of one with the key `data` (RFC 8949). */
const VERSION_KEY = Buffer.from([0xa3, 0x61, 0x76])
const TYPE_KEY = Buffer.from([0x61, 0x74])
const PAYLOAD_KEY = Buffer.from([0x61, 0x70])
const DATA_KEY = Buffer.from([0xa1, 0x64, 0x64, 0x61, 0x74, 0x61])
/** The largest number that is its own head. */
const MAX_TINY = 23

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
