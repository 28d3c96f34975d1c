import type { OnReadOpts } from 'node:net'

/** The size of a buffer, and so of the largest read. */
const BUFFER_BYTES = 64 * 1024
/** A smaller read is copied, so that its reader doesn't keep a whole buffer. */
const MIN_SHOWN_BYTES = 16 * 1024
/** How many unused buffers are kept. */
const FREE_MAX = 64

/**
 * Buffers that sockets read into, and that are used again once all of their bytes were released. Bytes that are never released are
 * garbage like others. Otherwise Node makes a new buffer for each read: 256 MiB into a volume then take the worker 0.90 to 1.14 s of
 * processor time instead of 0.42 to 0.56 (2026-11, 2 cores, with frames instead of a body).
 */
export type ReadBuffers = {
  /** Makes the option `onread` of a socket. `show` gets what was read. */
  readonly onread: (show: (chunk: Buffer) => void) => OnReadOpts
  /** Notes bytes of a chunk that somebody gets, while `show` is called. The others need not be released. */
  readonly hold: (bytes: Buffer) => void
  /** Releases bytes that were held. Nobody may use them afterwards. Other bytes are ignored. */
  readonly release: (bytes: Buffer) => void
}

/** Makes the buffers: none. */
export function makeReadBuffers(): ReadBuffers {
  const free: Buffer[] = []
  const held = new WeakMap<ArrayBufferLike, { readonly buffer: Buffer; bytes: number }>()

  const change = ({ buffer: memory }: Buffer, bytes: number): void => {
    const of = held.get(memory)
    if (of === undefined) return
    of.bytes += bytes
    if (of.bytes > 0) return
    held.delete(memory)
    if (free.length < FREE_MAX) free.push(of.buffer)
  }
  return {
    onread(show) {
      let next: Buffer | null = null
      const take = (): Buffer => (next ??= free.pop() ?? Buffer.allocUnsafeSlow(BUFFER_BYTES))
      return {
        buffer: take,
        callback(bytes) {
          const buffer = take()
          const chunk = buffer.subarray(0, bytes)
          if (bytes < MIN_SHOWN_BYTES) {
            show(Buffer.from(chunk))
            return true
          }
          next = null
          held.set(buffer.buffer, { buffer, bytes: 1 }) // keeps it while the chunk is shown
          try {
            show(chunk)
          } finally {
            change(buffer, -1)
          }
          return true
        },
      }
    },
    hold: (bytes) => {
      change(bytes, bytes.length)
    },
    release: (bytes) => {
      change(bytes, -bytes.length)
    },
  }
}
