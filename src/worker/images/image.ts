/** An image in the store, ready to be the lower layers of a sandbox's root file system. */
export type Image = {
  /** The reference as requested. */
  readonly reference: string
  /** The digest of the manifest, `sha256:…`. */
  readonly digest: string
  readonly config: ImageConfig
  /**
   * The folders of the unpacked layers, the lowest first. The owners of their files are shifted into the sandboxes'
   * user namespace.
   */
  readonly layers: readonly string[]
}

/** The configuration in the image. A sandbox's spec takes precedence over it. */
export type ImageConfig = {
  /** `KEY=VALUE` items. */
  readonly env: readonly string[]
  readonly entrypoint: readonly string[] | null
  readonly cmd: readonly string[] | null
  readonly workdir: string | null
  /** `name`, `uid`, `name:group` or `uid:gid`. */
  readonly user: string | null
}

/** A user name and password for one registry. */
export type RegistryAuth = { readonly username: string; readonly password: string }

/** Size limits for an image. A larger image is refused, so that a hostile image can't fill the memory or the disk. */
export type ImageLimits = {
  /**
   * The limit for an index, a manifest, an image configuration or a token reply. The OCI distribution specification
   * recommends at least 4 MiB.
   */
  readonly documentBytes: number
  /** The limit for one layer as downloaded. */
  readonly compressedLayerBytes: number
  /** The limit for the decompressed tar streams of all layers of one image together. */
  readonly unpackedImageBytes: number
  /** The limit on files, folders and links in all layers of one image together. Each takes an inode of the worker. */
  readonly filesPerImage: number
  /**
   * The limit for the total length of all names in one layer, because they are kept in memory while the layer is
   * unpacked.
   */
  readonly nameBytesPerLayer: number
  /** The limit on layers. Overlayfs and image builders have about the same limit. */
  readonly layersPerImage: number
}

export const DEFAULT_IMAGE_LIMITS: ImageLimits = {
  documentBytes: 4 * 1024 * 1024,
  compressedLayerBytes: 16 * 1024 ** 3,
  unpackedImageBytes: 20 * 1024 ** 3,
  filesPerImage: 1_000_000,
  nameBytesPerLayer: 128 * 1024 * 1024,
  layersPerImage: 127,
}
