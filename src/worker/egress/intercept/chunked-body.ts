import { RequestRefused } from './request-refused.ts'

const MAX_LINE = 4096
const MAX_TRAILERS = 64 * 1024

export type ChunkedPart =
  | { readonly kind: 'data'; readonly bytes: Buffer }
  | { readonly kind: 'end'; readonly trailers: Buffer; readonly rest: Buffer }

/** Decodes a chunked body that arrives in parts. The parts of `data` have whatever length arrived. */
export function makeChunkedDecoder(): (bytes: Buffer) => readonly ChunkedPart[] {
  let held: Buffer = Buffer.alloc(0)
  let left = 0
  let state: 'size' | 'data' | 'data_end' | 'trailers' = 'size'
  return (bytes) => {
    const parts: ChunkedPart[] = []
    let input = held.length === 0 ? bytes : Buffer.concat([held, bytes])
    held = Buffer.alloc(0)
    while (input.length > 0) {
      if (state === 'data') {
        const data = input.subarray(0, left)
        left -= data.length
        input = input.subarray(data.length)
        parts.push({ kind: 'data', bytes: data })
        if (left === 0) state = 'data_end'
      } else if (state === 'data_end') {
        if (input.length < 2) break
        if (input.readUInt16BE(0) !== 0x0d0a) throw new RequestRefused('malformed chunk')
        input = input.subarray(2)
        state = 'size'
      } else if (state === 'size') {
        const end = input.indexOf('\r\n')
        if (end === -1) {
          if (input.length > MAX_LINE) throw new RequestRefused('malformed chunk size')
          break
        }
        const [, size = ''] = /^([\da-f]{1,12})[ \t]*(?:;[^\r\n\0]*)?$/i.exec(input.toString('latin1', 0, end)) ?? []
        if (size === '' || end > MAX_LINE) throw new RequestRefused('malformed chunk size')
        left = Number.parseInt(size, 16)
        input = input.subarray(end + 2)
        state = left === 0 ? 'trailers' : 'data'
      } else {
        const isEmpty = input.length >= 2 && input.readUInt16BE(0) === 0x0d0a
        const end = isEmpty ? 0 : input.indexOf('\r\n\r\n') + 2
        if (end > MAX_TRAILERS || (end < 2 && input.length > MAX_TRAILERS)) throw new RequestRefused('long trailers')
        if (!isEmpty && end < 2) break
        parts.push({ kind: 'end', trailers: input.subarray(0, end), rest: input.subarray(end + 2) })
        return parts
      }
    }
    // What is kept must not be a view of a large buffer, and it is short: a line or the trailers.
    held = Buffer.from(input)
    return parts
  }
}

export function encodeChunk(bytes: Buffer): readonly Buffer[] {
  return bytes.length === 0 ? [] : [Buffer.from(`${bytes.length.toString(16)}\r\n`), bytes, Buffer.from('\r\n')]
}
