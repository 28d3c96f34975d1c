import type { Header } from 'tar-stream'

/** The header of a tar entry. The library's own type leaves out the nulls and the offset. */
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
  /** Where the body begins in the stream. */
  readonly offset: number
}

/** The header of an entry to write. */
export type TarHeader = Partial<Header> & Pick<Header, 'name'>

/** Options for the library, including an undeclared one: headers older than POSIX are read too. */
export const READ_OPTIONS = { highWaterMark: 64 * 1024, allowUnknownFormat: true } as const

/** Converts the library's header. */
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

/** What Node's writable streams and the tar library's streams have in common. */
type ByteSink = {
  readonly destroyed: boolean
  write(chunk: Buffer): boolean
  once(event: 'drain', listener: () => void): unknown
}

/** Writes and waits for backpressure, so no stage runs ahead of the next. Rejects with the signal's reason on abort. */
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

/** Checks a chunk of a stream whose type doesn't say what it yields. */
export function asBuffer(chunk: unknown): Buffer {
  if (Buffer.isBuffer(chunk)) return chunk
  throw new TypeError('a tar stream yielded something that is not a buffer')
}
