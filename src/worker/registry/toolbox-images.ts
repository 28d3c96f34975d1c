import { readBlob } from '../images/blob.ts'
import { StartError } from '../start-error.ts'
import type { PullableImages } from './loaded-images.ts'
import { addLayer, type LayeredImage, type ToolboxLayer } from './toolbox-layer.ts'

/** The loaded images, and each of them once more with the toolbox on top, under a digest of its own. */
export type ToolboxImages = PullableImages & {
  /**
   * The digest of an image with the toolbox. Rejects with `StartError` of reason `image` if files of the image are missing.
   */
  digestWith(digest: string): Promise<string>
  /** The digest of the image as it was loaded. Null for one that is none of `digestWith`. */
  digestWithout(digest: string): string | null
}

/** Makes the images with a toolbox. They are derived when somebody asks, and none is stored. */
export function makeToolboxImages(images: PullableImages, layer: ToolboxLayer): ToolboxImages {
  /** By the digest of the image as it was loaded. `list` forgets those that are loaded no longer. */
  const derived = new Map<string, LayeredImage>()
  const derive = async (digest: string): Promise<LayeredImage | null> => {
    const known = derived.get(digest)
    if (known !== undefined) return known
    const manifest = await images.readManifest(digest)
    const [config] = manifest?.blobs ?? []
    const blob = config === undefined ? null : await images.findBlob(config.digest)
    if (manifest === null || config === undefined || blob === null) return null
    const claim = { digest: config.digest, sizeBytes: config.size, maxBytes: config.size }
    const made = addLayer({ manifest: manifest.bytes, configuration: await readBlob(blob.open(null), claim) }, layer)
    derived.set(digest, made)
    return made
  }
  const find = (digest: string): readonly [string, LayeredImage] | undefined =>
    [...derived].find(([, image]) => image.digest === digest)

  return {
    async digestWith(digest) {
      const found = await derive(digest)
      if (found === null)
        throw new StartError(
          'image',
          `files of the image ${digest} are missing; load it again by \`sandyard image load\``,
        )
      return found.digest
    },
    digestWithout: (digest) => find(digest)?.[0] ?? null,
    async list() {
      const records = await images.list()
      for (const digest of derived.keys()) if (!records.some((one) => one.digest === digest)) derived.delete(digest)
      const layered = await Promise.all(
        records.map(async (record) => {
          const found = await derive(record.digest).catch(() => null) // a start with a damaged image says why, and others go on
          return found === null ? [] : [{ ...record, digest: found.digest }]
        }),
      )
      return [...records, ...layered.flat()] // a tag is that of the image as it was loaded, which comes first
    },
    async readManifest(digest) {
      const [own, image] = find(digest) ?? []
      if (own === undefined || image === undefined) return await images.readManifest(digest)
      const { blobs = [] } = (await images.readManifest(own)) ?? {}
      const added = [image.configuration, layer].map((one) => ({ digest: one.digest, size: one.blob.sizeBytes }))
      return { bytes: image.manifest, blobs: [...blobs, ...added] }
    },
    async findBlob(digest) {
      if (digest === layer.digest) return layer.blob
      const image = [...derived.values()].find(({ configuration }) => configuration.digest === digest)
      return image === undefined ? await images.findBlob(digest) : image.configuration.blob
    },
  }
}
