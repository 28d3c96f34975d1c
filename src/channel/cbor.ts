import { Tokenizer, decode, encode } from 'cborg'
import type { DecodeOptions } from 'cborg/interface'

/** Bytes that are not CBOR, or whose CBOR doesn't have the expected shape. */
export class CborError extends Error {}

/**
 * The maximum number of items in one decoded message. A frame of 4 MiB could contain four million items, and decoding
 * such a frame would block the process for seconds. A request with a long argument list has a few thousand items.
 */
const MAX_ITEMS = 65_536
/**
 * Keys of a map with more than this many count as four items each, and so does every text after its beginning. Such a map takes longer:
 * 30,000 keys took 26 to 60 ms (2026-11, 2 cores). A map of indefinite length may have any number.
 */
const FEW_KEYS = 256
const KEY_ITEMS = 4

/** The CBOR tag 64 (RFC 8746). Some libraries write it before byte strings. */
const TAG_UINT8_ARRAY = 64

/**
 * Encodes a value as CBOR with definite lengths, the shortest integers, and keys in the given order. Numbers must be
 * whole, because the client rejects floats. Throws `CborError` for a value that can't be encoded.
 */
export function encodeCbor(value: unknown): Uint8Array {
  return encode(value, {
    mapSorter: () => 0,
    typeEncoders: {
      number: (data: unknown) => {
        if (!Number.isSafeInteger(data)) throw new CborError(`${String(data)} is not a whole number`)
        return null
      },
    },
  })
}

/**
 * Decodes CBOR. Accepts keys in any order, integers longer than necessary, and lists and maps of indefinite length.
 * Throws `CborError` for invalid CBOR and for strings of indefinite length, which no client writes.
 */
export function decodeCbor(bytes: Uint8Array): unknown {
  const options: DecodeOptions = {
    allowIndefinite: true,
    allowUndefined: true,
    allowBigInt: true,
    strict: false,
    tags: { [TAG_UINT8_ARRAY]: (content) => content() },
  }
  try {
    const plain = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength)
    const value: unknown = decode(plain, { ...options, tokenizer: new CountingTokenizer(plain, options) })
    return value
  } catch (error) {
    throw new CborError('not a CBOR text', { cause: error })
  }
}

class CountingTokenizer extends Tokenizer {
  #items = 0
  #textItems = 1

  override next(): ReturnType<Tokenizer['next']> {
    const token = super.next()
    const { name } = token.type
    if (name === 'map' && token.value > FEW_KEYS) this.#textItems = KEY_ITEMS
    this.#items += name === 'string' ? this.#textItems : 1
    if (this.#items > MAX_ITEMS) throw new CborError(`more than ${String(MAX_ITEMS)} items`)
    return token
  }
}

/**
 * The `as…` functions below check the fields of decoded payloads. Each returns the field with its type or throws
 * `CborError`. Everywhere in the protocol, an absent field means the same as null.
 */

/** Returns a map with text keys. */
export function asMap(value: unknown): Readonly<Record<string, unknown>> {
  if (typeof value !== 'object' || value === null || Array.isArray(value) || value instanceof Uint8Array) {
    throw new CborError('a map was expected')
  }
  return { ...value }
}

export function asText(value: unknown): string {
  if (typeof value !== 'string') throw new CborError('a text was expected')
  return value
}

export function asOptionalText(value: unknown): string | null {
  return value === undefined || value === null ? null : asText(value)
}

/** Returns bytes, from a byte string or from an array of numbers from 0 to 255. */
export function asBytes(value: unknown): Uint8Array {
  if (value instanceof Uint8Array) return value
  if (Array.isArray(value)) return Uint8Array.from(value, (item) => asInteger(item, { min: 0, max: 255 }))
  throw new CborError('a byte string was expected')
}

/** Returns a list whose items `read` decodes. An absent list counts as empty. */
export function asList<T>(value: unknown, read: (item: unknown) => T): readonly T[] {
  if (value === undefined || value === null) return []
  if (!Array.isArray(value)) throw new CborError('a list was expected')
  return value.map((item) => read(item))
}

/** Returns a whole number from `min` to `max`, inclusive. */
export function asInteger(value: unknown, bounds: { readonly min: number; readonly max: number }): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < bounds.min || value > bounds.max) {
    throw new CborError(`a whole number from ${String(bounds.min)} to ${String(bounds.max)} was expected`)
  }
  return value
}

/** Returns an unsigned 64-bit number. A number beyond JavaScript's safe integers becomes the largest safe integer. */
export function asUnsigned64(value: unknown): number {
  if (typeof value === 'bigint' && value >= 0n) return Number.MAX_SAFE_INTEGER
  return asInteger(value, { min: 0, max: Number.MAX_SAFE_INTEGER })
}

export function asFlag(value: unknown): boolean {
  if (value === undefined || value === null) return false
  if (typeof value !== 'boolean') throw new CborError('true or false was expected')
  return value
}
