import { decode, encode, Tokenizer } from 'cborg'
import type { DecodeOptions } from 'cborg/interface'

/** Bytes that are not CBOR, or CBOR of a shape that nobody has a use for. */
export class CborError extends Error {}

/**
 * The most items that one decoded text may hold. A frame of 4 MiB could hold four million, and building them would
 * stop the process for seconds; a request with a long argument list has a few thousand.
 */
const MAX_ITEMS = 65_536

/** Binary data under tag 64 (RFC 8746), as some libraries write byte strings. */
const TAG_UINT8_ARRAY = 64

/**
 * Encodes with definite lengths, shortest integers and the keys in the order in which they stand. Numbers must be
 * whole (the client rejects floats): anything else throws `CborError`.
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
 * Decodes CBOR with any order of keys, wide integers and lists or maps of indefinite length. Throws `CborError` for the
 * rest, strings in pieces among it, which no client writes (section 4).
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

  override next(): ReturnType<Tokenizer['next']> {
    this.#items += 1
    if (this.#items > MAX_ITEMS) throw new CborError(`more than ${String(MAX_ITEMS)} items`)
    return super.next()
  }
}
