/** Lists of bytes as clients send the content of a file: `[104, 105]`, which can be two million numbers. */

/**
 * A long list that was found to have nothing but bytes while its body was parsed in pieces. It is kept as bytes, because a list of two million
 * numbers takes 16 MiB, and each step that looks at them took 13 to 230 ms in one turn of the event loop (2026-11).
 */
export class ByteList {
  /** No schema of an object knows this member, so each refuses a list of bytes. */
  readonly 'a list of bytes' = true
  readonly #bytes: Uint8Array

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes
  }

  get bytes(): Uint8Array {
    return this.#bytes
  }

  get length(): number {
    return this.#bytes.length
  }
}

/** The bytes of a list that `isListOfBytes` accepts. The loops here take a tenth of the time of `new Uint8Array(list)` and of `every` (2026-11). */
export function bytesOf(list: ByteList | readonly number[]): Uint8Array {
  if (list instanceof ByteList) return list.bytes
  const bytes = new Uint8Array(list.length)
  for (let at = 0; at < list.length; at += 1) bytes[at] = list[at] ?? 0
  return bytes
}

/** Whether a value is a list of bytes. */
export function isListOfBytes(value: unknown): boolean {
  if (!Array.isArray(value)) return value instanceof ByteList
  for (let at = 0; at < value.length; at += 1) {
    const item: unknown = value[at]
    if (typeof item !== 'number' || item < 0 || item > 255 || !Number.isInteger(item)) return false
  }
  return true
}
