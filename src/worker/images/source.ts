import { StartError } from '../start-error.ts'
import type { ImageLimits } from './image.ts'
import {
  choosePlatform,
  parseImageConfigDocument,
  parseManifest,
  type Descriptor,
  type ImageConfigDocument,
} from './manifest.ts'
import type { OpenBlob } from './layers/unpack.ts'

/** An image to store, from a registry or an archive. */
export type ImageSource = {
  readonly digest: string
  readonly resolvedDigest: string
  readonly configDocument: ImageConfigDocument
  /** The documents as they are in the source. An archive of `docker save` has no manifest. */
  readonly documents: { readonly manifest: Buffer | null; readonly configuration: Buffer }
  /** One layer for each diff_id in the document, the lowest first. */
  readonly layers: readonly { readonly diffId: string; readonly open: OpenBlob }[]
}

/** Access to the manifests and blobs of a registry or an OCI layout. `key` is a tag or a digest. */
export type BlobStore = {
  getManifest(key: string, signal: AbortSignal): Promise<{ readonly bytes: Buffer; readonly digest: string }>
  getSmallBlob(descriptor: Descriptor, signal: AbortSignal): Promise<Buffer>
  openBlob(descriptor: Descriptor, signal: AbortSignal): AsyncIterable<Buffer>
}

export type SourceOptions = {
  /** The name of the image in messages. */
  readonly imageName: string
  readonly architecture: string
  readonly limits: ImageLimits
  readonly signal: AbortSignal
}

/**
 * Finds the manifest and configuration for this machine's platform by `key`, which is a tag or digest. If `key` leads
 * to an index, the manifest is chosen from it.
 */
export async function findSource(blobs: BlobStore, key: string, options: SourceOptions): Promise<ImageSource> {
  const { imageName: name, architecture, limits, signal } = options
  const top = await blobs.getManifest(key, signal)
  let chosen = top
  let parsed = parseManifest(top.bytes, name)
  if (parsed.kind === 'index') {
    chosen = await blobs.getManifest(choosePlatform(parsed.index, architecture, name).digest, signal)
    parsed = parseManifest(chosen.bytes, name)
  }
  if (parsed.kind === 'index') throw new StartError('image', `${name}: an index within an index is not supported`)
  const { config, layers } = parsed.manifest
  const configuration = await blobs.getSmallBlob(config, signal)
  const document = parseImageConfigDocument(configuration, architecture, name)
  return {
    digest: chosen.digest,
    resolvedDigest: top.digest,
    configDocument: document,
    documents: { manifest: chosen.bytes, configuration },
    layers: pairLayers(
      document,
      layers.map(
        (layer): OpenBlob =>
          (reading) =>
            blobs.openBlob(layer, reading),
      ),
      { imageName: name, limits },
    ),
  }
}

/** Pairs each layer with its diff_id. Throws when the two lists differ in length or are too long. */
export function pairLayers(
  document: ImageConfigDocument,
  opens: readonly OpenBlob[],
  { imageName: name, limits }: Pick<SourceOptions, 'imageName' | 'limits'>,
): ImageSource['layers'] {
  if (opens.length > limits.layersPerImage) {
    throw new StartError(
      'image',
      `${name} has ${String(opens.length)} layers; the limit of this worker is ${String(limits.layersPerImage)} (SANDYARD_IMAGE_MAX_LAYERS)`,
    )
  }
  if (opens.length !== document.diffIds.length) {
    throw new StartError(
      'image',
      `${name}: its manifest has ${String(opens.length)} layers, its configuration ${String(document.diffIds.length)}`,
    )
  }
  return opens.flatMap((open, index) => {
    const diffId = document.diffIds[index]
    return diffId === undefined ? [] : [{ diffId, open }]
  })
}
