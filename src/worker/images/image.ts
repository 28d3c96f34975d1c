/** An image in the store, ready to be the lower layers of a sandbox's root file system. */
export type Image = {
  /** As requested. */
  readonly reference: string
  /** The digest of the manifest, `sha256:…`. */
  readonly digest: string
  readonly config: ImageConfig
  /**
   * The folders of the unpacked layers, the lowest first. Their owners are shifted into the sandboxes' user namespace.
   */
  readonly layers: readonly string[]
}

/** The image's own configuration. A sandbox's spec takes precedence. */
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

/** The limits of an image. Larger ones are refused, so a hostile image can't fill the memory or the disk. */
export type ImageLimits = {
  /**
   * Of an index, a manifest, an image configuration or a token reply. The OCI distribution specification asks for 4
   * MiB.
   */
  readonly documentBytes: number
  /** Of one layer as downloaded. */
  readonly compressedLayerBytes: number
  /** Of one layer's decompressed tar stream. */
  readonly unpackedLayerBytes: number
  readonly entriesPerLayer: number
  /** Of all names in one layer together, which are held in memory while it is unpacked. */
  readonly nameBytesPerLayer: number
  /** Overlayfs and image builders stop at about this many. */
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
