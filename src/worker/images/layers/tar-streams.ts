import type { Header } from 'tar-stream'

/** The header of a tar entry. The tar library's own type omits the possible nulls and the offset. */
export type TarEntry = {
  readonly name: string
  /** Null for a type flag that the library doesn't know. */
  readonly type: Header['type'] | null
  readonly mode: number
  readonly uid: number
  readonly gid: number
  readonly sizeBytes: number
  readonly mtimeMs: number
  readonly linkname: string
  /** The records of the PAX header. The library itself applies only `path`, `linkpath` and `size`. */
  readonly pax: Readonly<Record<string, string>>
  /** The position in the stream at which the body starts. */
  readonly offset: number
}

/** The header of an entry to write. */
export type TarHeader = Partial<Header> & Pick<Header, 'name'>

/**
 * Options for the tar library. `allowUnknownFormat`, which its types don't declare, allows headers older than POSIX.
 */
export const READ_OPTIONS = { highWaterMark: 64 * 1024, allowUnknownFormat: true } as const

/** Converts the tar library's header to a `TarEntry`. */
export function readTarEntry(header: Header): TarEntry {
  const { type, linkname }: { readonly type: Header['type'] | null; readonly linkname: string | null } = header
  return {
    name: header.name,
    type,
    mode: header.mode,
    uid: header.uid,
    gid: header.gid,
    sizeBytes: header.size,
    mtimeMs: header.mtime.getTime(),
    linkname: linkname ?? '',
    pax: readPax(header.pax),
    offset: 'byteOffset' in header && typeof header.byteOffset === 'number' ? header.byteOffset : 0,
  }
}

function readPax(pax: unknown): Readonly<Record<string, string>> {
  if (typeof pax !== 'object' || pax === null) return {}
  return Object.fromEntries(Object.entries(pax).map(([key, value]) => [key, String(value)]))
}

/** The methods that Node's writable streams and the tar library's streams have in common. */
type ByteSink = {
  readonly destroyed: boolean
  write(chunk: Buffer): boolean
  once(event: 'drain', listener: () => void): unknown
}

/** Writes a chunk. If the stream is full, waits until it has drained. Rejects with the signal's reason on abort. */
export async function writeWithBackpressure(to: ByteSink, chunk: Buffer, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted()
  if (to.write(chunk) || to.destroyed) return
  await new Promise<void>((resolve, reject) => {
    const onAbort = (): void => {
      reject(signal.reason instanceof Error ? signal.reason : new Error('aborted'))
    }
    signal.addEventListener('abort', onAbort, { once: true })
    to.once('drain', () => {
      signal.removeEventListener('abort', onAbort)
      resolve()
    })
  })
}

/**
 * Returns `chunk` as a buffer, or throws if it is none. Needed because the stream's type doesn't declare the type of
 * its chunks.
 */
export function asBuffer(chunk: unknown): Buffer {
  if (Buffer.isBuffer(chunk)) return chunk
  throw new TypeError('a tar stream yielded something that is not a buffer')
}
