import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { open, rename } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { syncPath } from '../../lib/files.ts'
import { decompress } from '../images/blob.ts'
import { makeImageBudget, type LayerBudget } from '../images/image-budget.ts'
import type { ImageLimits } from '../images/image.ts'
import type { ImageSource } from '../images/source.ts'
import type { SpaceClaim } from '../images/store-space.ts'
import { StartError } from '../start-error.ts'

type StoreOptions = {
  /** The name of the image in messages. */
  readonly name: string
  /** A temporary folder on the file system of the blobs. */
  readonly folder: string
  /** The path of a blob by its digest. A file there is complete, because it gets its name by a rename. */
  readonly pathOf: (digest: string) => string
  readonly limits: ImageLimits
  /** Counts the blob that is being written. */
  readonly claim: SpaceClaim
  readonly signal: AbortSignal
}

type StoredBlob = { readonly mediaType: string; readonly digest: string; readonly size: number }

const MANIFEST = 'application/vnd.oci.image.manifest.v1+json'
const CONFIGURATION = 'application/vnd.oci.image.config.v1+json'
const LAYER = 'application/vnd.oci.image.layer.v1.tar'

/**
 * Stores the layers, the configuration and the manifest of an image as they are in their source, and returns the digest of the manifest.
 * Makes a manifest for a source without one. Rejects with `StartError` of reason `image` if a layer is not what the configuration says.
 */
export async function storeBlobs(source: ImageSource, options: StoreOptions): Promise<string> {
  const { manifest, configuration } = source.documents
  const budget = makeImageBudget(`image ${options.name}`, options.limits)
  const layers: StoredBlob[] = []
  for (const { diffId, open: openLayer } of source.layers)
    layers.push(await storeLayer(openLayer(options.signal), { diffId, budget: budget.beginLayer(diffId) }, options))
  const config = await storeDocument(configuration, CONFIGURATION, options)
  const made = manifest ?? Buffer.from(JSON.stringify({ schemaVersion: 2, mediaType: MANIFEST, config, layers }))
  const { digest } = await storeDocument(made, MANIFEST, options)
  await syncPath(dirname(options.pathOf(digest)))
  return digest
}

async function storeLayer(
  chunks: AsyncIterable<Buffer>,
  { diffId, budget }: { readonly diffId: string; readonly budget: LayerBudget },
  options: StoreOptions,
): Promise<StoredBlob> {
  const stored = await storeBlob(chunks, options)
  const path = options.pathOf(stored.digest)
  const plain = createHash('sha256')
  let isPlain = true
  await decompress(createReadStream(path), async (content) => {
    for await (const chunk of content) {
      options.signal.throwIfAborted()
      budget.addBytes(chunk.length)
      plain.update(chunk)
    }
  }).catch((error: unknown) => {
    if (error instanceof StartError || options.signal.aborted) throw error
    isPlain = false
  })
  const found = `sha256:${plain.digest('hex')}`
  if (!isPlain || found !== diffId)
    throw new StartError('image', `a layer has the digest ${found}, but the image's configuration says ${diffId}`)
  const head = await readHead(path)
  const compression = found === stored.digest ? '' : head === 0x1f ? '+gzip' : '+zstd'
  return { mediaType: `${LAYER}${compression}`, ...stored }
}

async function storeDocument(bytes: Buffer, mediaType: string, options: StoreOptions): Promise<StoredBlob> {
  return { mediaType, ...(await storeBlob([bytes], options)) }
}

async function storeBlob(
  chunks: AsyncIterable<Buffer> | Iterable<Buffer>,
  { folder, pathOf, claim, signal }: StoreOptions,
): Promise<Omit<StoredBlob, 'mediaType'>> {
  const written = join(folder, 'blob')
  const hash = createHash('sha256')
  const file = await open(written, 'w', 0o600)
  let size = 0
  try {
    for await (const chunk of chunks) {
      signal.throwIfAborted()
      hash.update(chunk)
      size += chunk.length
      claim.add(chunk.length)
      await claim.check()
      await file.writeFile(chunk)
    }
    await claim.require()
    await file.sync()
  } finally {
    await file.close()
  }
  const digest = `sha256:${hash.digest('hex')}`
  const path = pathOf(digest)
  await rename(written, path) // the same content replaces itself, and counts as new for `prune`
  claim.release() // it counts among the stored ones now
  return { digest, size }
}

async function readHead(path: string): Promise<number | undefined> {
  const file = await open(path)
  try {
    const { buffer } = await file.read(Buffer.alloc(1), 0, 1, 0)
    return buffer[0]
  } finally {
    await file.close()
  }
}
