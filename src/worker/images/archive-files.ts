import { createReadStream, createWriteStream } from 'node:fs'
import { open, readFile, stat } from 'node:fs/promises'
import { join, posix } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { extract } from 'tar-stream'
import { StartError } from '../start-error.ts'
import { decompress } from './blob.ts'
import type { ImageLimits } from './limits.ts'
import { writeWithBackpressure } from './sink.ts'
import { READ_OPTIONS, readTarEntry } from './tar-entry.ts'

/** Files by their name in a saved image: a folder on disk, or a tar that is read in place. */
export interface ArchiveFiles {
  has(name: string): Promise<boolean>
  /** Reads a whole document; throws `StartError('image')` when it is missing or larger than a document may be. */
  read(name: string): Promise<Buffer>
  open(name: string, signal: AbortSignal): AsyncIterable<Buffer>
}

type FileSlice = { readonly path: string; readonly start: number; readonly sizeBytes: number }

/**
 * Opens a folder, or a tar file that may be compressed; then its plain form is kept in `temp`, a folder of the
 * caller's, because layers are read from the middle of it.
 */
export async function openArchive(
  path: string,
  { temp, limits }: { readonly temp: string; readonly limits: ImageLimits },
): Promise<ArchiveFiles> {
  const found = await stat(path).catch((error: unknown) => {
    throw new StartError('image', `${path} can't be read; name an image archive or an OCI layout folder`, error)
  })
  if (found.isDirectory()) return fromSlices((name) => sliceOfFile(join(path, name)), limits)
  const plain = await decompressTar(path, join(temp, 'archive.tar'))
  const slices = await indexTar(plain)
  return fromSlices((name) => Promise.resolve(slices.get(name) ?? null), limits)
}

function fromSlices(find: (name: string) => Promise<FileSlice | null>, limits: ImageLimits): ArchiveFiles {
  async function* openSlice(name: string, signal?: AbortSignal): AsyncGenerator<Buffer> {
    const slice = await find(name)
    if (slice === null) throw new StartError('image', `the archive has no ${name}`)
    if (slice.sizeBytes === 0) return
    const { path, start, sizeBytes } = slice
    yield* createReadStream(path, { start, end: start + sizeBytes - 1, ...(signal === undefined ? {} : { signal }) })
  }
  return {
    has: async (name) => (await find(name)) !== null,
    async read(name) {
      const slice = await find(name)
      if (slice !== null && slice.sizeBytes > limits.documentBytes)
        throw new StartError('image', `${name} in the archive is too large`)
      return slice !== null && slice.start === 0
        ? readFile(slice.path)
        : Buffer.concat(await Array.fromAsync(openSlice(name)))
    },
    open: openSlice,
  }
}

async function sliceOfFile(path: string): Promise<FileSlice | null> {
  try {
    const found = await stat(path)
    return found.isFile() ? { path, start: 0, sizeBytes: found.size } : null
  } catch (error) {
    if (error instanceof Error && 'code' in error && (error.code === 'ENOENT' || error.code === 'ENOTDIR')) return null
    throw error
  }
}

const TAR_MAGIC = 'ustar'
const TAR_MAGIC_OFFSET = 257

async function decompressTar(path: string, copy: string): Promise<string> {
  const file = await open(path, 'r')
  try {
    const magic = Buffer.alloc(TAR_MAGIC.length)
    await file.read(magic, 0, magic.length, TAR_MAGIC_OFFSET)
    if (magic.toString('latin1') === TAR_MAGIC) return path
  } finally {
    await file.close()
  }
  try {
    await decompress(createReadStream(path), (plain) => pipeline(plain, createWriteStream(copy)))
  } catch (error) {
    throw new StartError('image', `${path} is no tar archive, nor a compressed one`, error)
  }
  return copy
}

/** Notes where each file lies. Older `docker save` writes a layer once and symlinks to it. */
async function indexTar(path: string): Promise<ReadonlyMap<string, FileSlice>> {
  const slices = new Map<string, FileSlice>()
  const links = new Map<string, string>()
  const reader = extract(READ_OPTIONS)
  const stop = new AbortController()
  const feed = async (chunks: AsyncIterable<Buffer>): Promise<void> => {
    for await (const chunk of chunks) await writeWithBackpressure(reader, chunk, stop.signal)
    reader.end(null)
  }
  const feeding = pipeline(createReadStream(path), feed, { signal: stop.signal }).catch((error: unknown) => {
    reader.destroy(error instanceof Error ? error : new Error('unreadable'))
  })
  try {
    for await (const source of reader) {
      const entry = readTarEntry(source.header)
      const name = posix.normalize(entry.name)
      if (entry.type === 'file') slices.set(name, { path, start: entry.offset, sizeBytes: entry.sizeBytes })
      else if (entry.type === 'symlink' || entry.type === 'link') {
        links.set(
          name,
          posix.normalize(entry.type === 'link' ? entry.linkname : posix.join(posix.dirname(name), entry.linkname)),
        )
      }
      source.resume()
    }
  } catch (error) {
    throw new StartError('image', `${path} is no complete tar archive`, error)
  } finally {
    stop.abort()
    await feeding
  }
  for (const [name, target] of links) {
    const slice = slices.get(target)
    if (slice !== undefined) slices.set(name, slice)
  }
  return slices
}
