import { createReadStream } from 'node:fs'
import { rename, writeFile } from 'node:fs/promises'
import { posix } from 'node:path'
import { Readable } from 'node:stream'
import { SCRIPTS_FOLDER, TOOLS_FOLDER } from '../../contract/workers/guest-tools.ts'
import { digestOf } from '../images/blob.ts'
import { makeTar } from '../images/make-tar.ts'
import type { BlobContent } from './loaded-images.ts'

/** The layer with the toolbox that is on top of each image as nodes pull it. */
export type ToolboxLayer = { readonly digest: string; readonly blob: BlobContent }

/** The name by which a layer hides what the layers below have in a folder (OCI image specification, "Opaque Whiteout"). */
const OPAQUE = '.wh..wh..opq'

/**
 * Writes the layer into a file, which replaces the one of an earlier process. The layer is not compressed, so that the
 * same files make the same digest with every version of Node. It hides everything that an image has in the worker's
 * folder, also a symbolic link in its place.
 */
export async function openToolboxLayer(
  file: string,
  toolbox: readonly { readonly name: string; readonly content: Buffer; readonly mode: number }[],
): Promise<ToolboxLayer> {
  const inLayer = (path: string): string => path.slice(1)
  const tools = toolbox
    .toSorted((a, b) => (a.name < b.name ? -1 : 1))
    .map((one) => ({ ...one, name: `${inLayer(TOOLS_FOLDER)}/${one.name}` }))
  const content = await makeTar([
    { name: `${inLayer(posix.dirname(TOOLS_FOLDER))}/${OPAQUE}`, content: Buffer.alloc(0), mode: 0o644 },
    { name: inLayer(SCRIPTS_FOLDER), content: null, mode: 0o755 },
    ...tools,
  ])
  await writeFile(`${file}.new`, content, { mode: 0o600 })
  await rename(`${file}.new`, file)
  return {
    digest: digestOf(content),
    blob: { sizeBytes: content.length, open: (range) => createReadStream(file, range ?? {}) },
  }
}

/** An image with a layer on top of it. */
export type LayeredImage = {
  readonly digest: string
  readonly manifest: Buffer
  readonly configuration: { readonly digest: string; readonly blob: BlobContent }
}

type Documents = { readonly manifest: Buffer; readonly configuration: Buffer }
/** What the parsers of images guarantee of their documents. */
type Manifest = { readonly mediaType?: string; readonly config: object; readonly layers: readonly object[] }
type Configuration = { readonly rootfs: { readonly diff_ids: readonly string[] }; readonly history?: unknown }

/** Adds the layer to the documents of an image. All else stays as it is, so the same image and layer always have the same digest. */
export function addLayer(documents: Documents, { digest, blob }: ToolboxLayer): LayeredImage {
  const manifest = JSON.parse(documents.manifest.toString('utf8')) as Manifest
  const { history, ...configuration } = JSON.parse(documents.configuration.toString('utf8')) as Configuration
  const { rootfs } = configuration
  const config = json({
    ...configuration,
    rootfs: { ...rootfs, diff_ids: [...rootfs.diff_ids, digest] }, // it is not compressed, so both digests are equal
    // An image may have no history, but not one of some layers alone.
    ...(Array.isArray(history) ? { history: [...(history as unknown[]), { created_by: 'sandyard toolbox' }] } : {}),
  })
  const layered = json({
    ...manifest,
    config: { ...manifest.config, digest: digestOf(config), size: config.length },
    layers: [...manifest.layers, { mediaType: mediaTypeIn(manifest), digest, size: blob.sizeBytes }],
  })
  const open: BlobContent['open'] = (range) =>
    Readable.from([range === null ? config : config.subarray(range.start, range.end + 1)])
  return {
    digest: digestOf(layered),
    manifest: layered,
    configuration: { digest: digestOf(config), blob: { sizeBytes: config.length, open } },
  }
}

/** The type of an uncompressed layer. Tools refuse one of OCI in a manifest of Docker. */
function mediaTypeIn({ mediaType = '' }: Manifest): string {
  return mediaType.startsWith('application/vnd.docker.')
    ? 'application/vnd.docker.image.rootfs.diff.tar'
    : 'application/vnd.oci.image.layer.v1.tar'
}

function json(document: object): Buffer {
  return Buffer.from(JSON.stringify(document))
}
