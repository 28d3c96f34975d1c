import { Type } from 'typebox'
import { Value } from 'typebox/value'
import { StartError } from '../start-error.ts'
import type { ArchiveFiles } from './archive-files.ts'
import { digestOf, readBlob, verifyBlob } from './blob.ts'
import type { ImageLimits } from './limits.ts'
import { choosePlatform, parseImageConfigDocument, parseManifest } from './manifest.ts'
import { findSource, pairLayers, type BlobStore, type ImageSource, type SourceOptions } from './source.ts'

const DockerArchive = Type.Array(Type.Object({ Config: Type.String(), Layers: Type.Array(Type.String()) }))

/**
 * Finds the image in an archive: an OCI layout (folder or tar), or the form of `docker save`. An archive of more than
 * one image is refused, several platforms of one image are not. Layers are checked by digest where the archive has
 * one, and always by diff_id.
 */
export async function findSourceInArchive(files: ArchiveFiles, options: SourceOptions): Promise<ImageSource> {
  if (await files.has('index.json')) return findInLayout(files, options)
  if (await files.has('manifest.json')) return findInDockerArchive(files, options)
  throw new StartError(
    'image',
    `${options.imageName}: neither an OCI layout (index.json) nor a docker archive (manifest.json)`,
  )
}

async function findInLayout(files: ArchiveFiles, options: SourceOptions): Promise<ImageSource> {
  const { imageName: name, architecture, limits } = options
  const parsed = parseManifest(await files.read('index.json'), name)
  if (parsed.kind !== 'index') throw new StartError('image', `${name}: its index.json is no index`)
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
    throw new StartError('image', `${name} holds ${String(manifests.length)} images; save the one you want alone`)
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
    throw new StartError('image', `${name} holds ${String(listed.length)} images; save the one you want alone`)
  const configuration = await files.read(image.Config)
  const document = parseImageConfigDocument(configuration, architecture, name)
  const claim = { digest: null, sizeBytes: null, maxBytes: limits.compressedLayerBytes }
  const opens = image.Layers.map((layer) => (signal: AbortSignal) => verifyBlob(files.open(layer, signal), claim))
  const digest = digestOf(configuration) // there is no manifest; this is the image id that docker shows
  return {
    digest,
    resolvedDigest: digest,
    configDocument: document,
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
