import { createReadStream, createWriteStream } from 'node:fs'
import { open, readFile, stat } from 'node:fs/promises'
import { join, posix } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { Type } from 'typebox'
import { Value } from 'typebox/value'
import { extract } from 'tar-stream'
import { hasErrorCode } from '../../lib/error-code.ts'
import { StartError } from '../start-error.ts'
import { decompress, digestOf, readBlob, verifyBlob } from './blob.ts'
import type { ImageLimits } from './image.ts'
import { choosePlatform, parseImageConfigDocument, parseManifest } from './manifest.ts'
import { type BlobStore, type ImageSource, type SourceOptions, findSource, pairLayers } from './source.ts'
import { READ_OPTIONS, readTarEntry, writeWithBackpressure } from './layers/tar-streams.ts'

const DockerArchive = Type.Array(Type.Object({ Config: Type.String(), Layers: Type.Array(Type.String()) }))

/**
 * Finds the image in an archive: an OCI layout (folder or tar), or the output of `docker save`. Refuses an archive of
 * several images, but accepts several platforms of one image. Layers are always verified by diff_id, and also by digest
 * if the archive has one.
 */
export async function findSourceInArchive(files: ArchiveFiles, options: SourceOptions): Promise<ImageSource> {
  if (await files.has('index.json')) return findInLayout(files, options)
  if (await files.has('manifest.json')) return findInDockerArchive(files, options)
  throw new StartError(
    'image',
    `${options.imageName}: it is neither an OCI layout (no index.json) nor a docker archive (no manifest.json)`,
  )
}

async function findInLayout(files: ArchiveFiles, options: SourceOptions): Promise<ImageSource> {
  const { imageName: name, architecture, limits } = options
  const parsed = parseManifest(await files.read('index.json'), name)
  if (parsed.kind !== 'index') throw new StartError('image', `${name}: its index.json is not an index`)
  const { manifests } = parsed.index
  const only = manifests[0]
  const areVariants = manifests.every(({ platform }) => platform !== undefined)
  const entry =
    manifests.length === 1 && only !== undefined
      ? only
      : areVariants
        ? choosePlatform(parsed.index, architecture, name)
        : null
  if (entry === null)
    throw new StartError(
      'image',
      `${name} contains ${String(manifests.length)} images; save only one image in an archive`,
    )
  return findSource(layoutBlobs(files, limits), entry.digest, options)
}

function layoutBlobs(files: ArchiveFiles, limits: ImageLimits): BlobStore {
  const pathOf = (digest: string): string => `blobs/sha256/${digest.slice('sha256:'.length)}`
  return {
    async getManifest(digest, signal) {
      const claim = { digest, sizeBytes: null, maxBytes: limits.documentBytes }
      return { bytes: await readBlob(files.open(pathOf(digest), signal), claim), digest }
    },
    getSmallBlob: ({ digest, size }, signal) =>
      readBlob(files.open(pathOf(digest), signal), { digest, sizeBytes: size, maxBytes: limits.documentBytes }),
    openBlob: ({ digest, size }, signal) =>
      verifyBlob(files.open(pathOf(digest), signal), {
        digest,
        sizeBytes: size,
        maxBytes: limits.compressedLayerBytes,
      }),
  }
}

async function findInDockerArchive(files: ArchiveFiles, options: SourceOptions): Promise<ImageSource> {
  const { imageName: name, architecture, limits } = options
  const listed = parseList(await files.read('manifest.json'))
  const image = listed?.[0]
  if (listed === null || image === undefined) throw new StartError('image', `${name}: its manifest.json lists no image`)
  if (listed.length > 1)
    throw new StartError('image', `${name} contains ${String(listed.length)} images; save only one image in an archive`)
  const configuration = await files.read(image.Config)
  const document = parseImageConfigDocument(configuration, architecture, name)
  const claim = { digest: null, sizeBytes: null, maxBytes: limits.compressedLayerBytes }
  const opens = image.Layers.map((layer) => (signal: AbortSignal) => verifyBlob(files.open(layer, signal), claim))
  const digest = digestOf(configuration) // there is no manifest, and docker shows this digest as the image id
  return {
    digest,
    resolvedDigest: digest,
    configDocument: document,
    documents: { manifest: null, configuration },
    layers: pairLayers(document, opens, { imageName: name, limits }),
  }
}

function parseList(bytes: Buffer): readonly { readonly Config: string; readonly Layers: readonly string[] }[] | null {
  try {
    const value: unknown = JSON.parse(bytes.toString('utf8'))
    return Value.Check(DockerArchive, value) ? value : null
  } catch (error) {
    if (error instanceof SyntaxError) return null
    throw error
  }
}

/** The files of a saved image, by name. They are read from a folder, or directly from an uncompressed tar. */
interface ArchiveFiles {
  has(name: string): Promise<boolean>
  /** Reads a whole document. Throws `StartError('image')` when it is missing or too large. */
  read(name: string): Promise<Buffer>
  open(name: string, signal: AbortSignal): AsyncIterable<Buffer>
}

type FileSlice = { readonly path: string; readonly start: number; readonly sizeBytes: number }

/**
 * Opens a folder, or a tar file that may be compressed. A compressed tar is first decompressed into the folder `temp`,
 * because layers are read from the middle of the tar.
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
    if (hasErrorCode(error, 'ENOENT', 'ENOTDIR')) return null
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
    throw new StartError('image', `${path} is neither a tar archive nor a compressed tar archive`, error)
  }
  return copy
}

/**
 * Finds the position of each file in the tar. If an image repeats a layer, older versions of `docker save` write the
 * layer once and add symlinks to it. The symlinks are resolved here.
 */
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
    throw new StartError('image', `${path} is not a complete tar archive`, error)
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
