/** An image in the store, ready to be the lower layers of a sandbox's root file system. */
export type Image = {
  /** As asked for. */
  readonly reference: string
  /** Of the manifest, `sha256:…`. */
  readonly digest: string
  readonly config: ImageConfig
  /** Unpacked layer directories, the lowest first. Owners are shifted into the sandboxes' user namespace. */
  readonly layers: readonly string[]
}

/** What the image's own configuration says; a sandbox's spec overrides it. */
export type ImageConfig = {
  /** `KEY=VALUE` items. */
  readonly env: readonly string[]
  readonly entrypoint: readonly string[] | null
  readonly cmd: readonly string[] | null
  readonly workdir: string | null
  /** `name`, `uid`, `name:group` or `uid:gid`. */
  readonly user: string | null
}

/** A name and password for one registry. */
export type RegistryAuth = { readonly username: string; readonly password: string }

/** What an image may be at most; beyond it is refused, so that a hostile image fills neither memory nor the disk. */
export type ImageLimits = {
  /** Of an index, a manifest, an image configuration or a token reply; the distribution specification asks for 4 MiB. */
  readonly documentBytes: number
  /** Of one layer as it is downloaded. */
  readonly compressedLayerBytes: number
  /** Of one layer's tar stream after decompression. */
  readonly unpackedLayerBytes: number
  readonly entriesPerLayer: number
  /** Of all names in one layer together: they are held in memory while it is unpacked. */
  readonly nameBytesPerLayer: number
  /** Overlayfs and the builders stop at about this many. */
  readonly layersPerImage: number
}

export const DEFAULT_IMAGE_LIMITS: ImageLimits = {
  documentBytes: 4 * 1024 * 1024,
  compressedLayerBytes: 16 * 1024 ** 3,
  unpackedLayerBytes: 32 * 1024 ** 3,
  entriesPerLayer: 1_000_000,
  nameBytesPerLayer: 128 * 1024 * 1024,
  layersPerImage: 127,
}
