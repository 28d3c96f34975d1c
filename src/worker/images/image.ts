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
