import { Type, type Static } from 'typebox'
import { Value } from 'typebox/value'
import { StartError } from '../start-error.ts'
import type { ImageConfig } from './image.ts'

/**
 * The pattern of a digest: `sha256:` and 64 hex digits. No other algorithm is accepted, so a digest is always safe in a
 * path or a URL.
 */
export const DIGEST_SHAPE = '^sha256:[0-9a-f]{64}$'

const Descriptor = Type.Object({
  mediaType: Type.Optional(Type.String()),
  digest: Type.String({ pattern: DIGEST_SHAPE }),
  size: Type.Integer({ minimum: 0 }),
})
const Platform = Type.Object({ os: Type.String(), architecture: Type.String(), variant: Type.Optional(Type.String()) })
const Index = Type.Object({
  manifests: Type.Array(
    Type.Interface([Descriptor], {
      platform: Type.Optional(Platform),
      annotations: Type.Optional(Type.Record(Type.String(), Type.String())),
    }),
  ),
})
const Manifest = Type.Object({ config: Descriptor, layers: Type.Array(Descriptor) })

const OptionalStrings = Type.Optional(Type.Union([Type.Array(Type.String()), Type.Null()]))
const OptionalString = Type.Optional(Type.Union([Type.String(), Type.Null()]))
const Configuration = Type.Object({
  os: Type.Optional(Type.String()),
  architecture: Type.Optional(Type.String()),
  rootfs: Type.Object({ diff_ids: Type.Array(Type.String({ pattern: DIGEST_SHAPE })) }),
  config: Type.Optional(
    Type.Union([
      Type.Object({
        Env: OptionalStrings,
        Entrypoint: OptionalStrings,
        Cmd: OptionalStrings,
        WorkingDir: OptionalString,
        User: OptionalString,
        Labels: Type.Optional(Type.Union([Type.Record(Type.String(), Type.String()), Type.Null()])),
      }),
      Type.Null(),
    ]),
  ),
})

export type Descriptor = Static<typeof Descriptor>
type Index = Static<typeof Index>
type Manifest = Static<typeof Manifest>

/** The parts of an image's configuration document that the store uses. */
export type ImageConfigDocument = {
  readonly config: ImageConfig
  readonly labels: Readonly<Record<string, string>>
  /** The digests of the layers' decompressed tar streams, the lowest first. */
  readonly diffIds: readonly string[]
}

/**
 * An index or a manifest, in the format of OCI or Docker v2. The fields of the document decide which of the two it is.
 */
type ManifestOrIndex =
  { readonly kind: 'index'; readonly index: Index } | { readonly kind: 'manifest'; readonly manifest: Manifest }

/** Parses an index or a manifest. Throws `StartError('image')` for anything else, including Docker's schema 1. */
export function parseManifest(bytes: Buffer, what: string): ManifestOrIndex {
  const value = parseJson(bytes, what)
  const isIndex = Value.Check(Index, value)
  const isManifest = Value.Check(Manifest, value)
  if (isIndex && isManifest) throw new StartError('image', `${what}: its manifest is also an index`)
  if (isIndex) return { kind: 'index', index: value }
  if (isManifest) return { kind: 'manifest', manifest: value }
  throw new StartError(
    'image',
    `${what}: the manifest is neither OCI nor Docker v2 with sha256 digests; push the image again with a current tool`,
  )
}

/**
 * Finds the manifest for Linux on `architecture` (Go's name, such as `amd64`) in an index. Throws when there is none.
 */
export function choosePlatform(index: Index, architecture: string, what: string): Descriptor {
  const found = index.manifests.find(
    ({ platform }) => platform?.os === 'linux' && platform.architecture === architecture,
  )
  if (found !== undefined) return found
  const only = index.manifests.length === 1 ? index.manifests[0] : undefined
  if (only !== undefined && only.platform === undefined) return only
  const offered = index.manifests.flatMap(({ platform }) =>
    platform === undefined ? [] : [`${platform.os}/${platform.architecture}`],
  )
  throw new StartError(
    'image',
    `${what} has no linux/${architecture} variant; it has: ${[...new Set(offered)].join(', ') || 'none'}`,
  )
}

/**
 * Parses an image configuration. Throws when the image is for another platform. An empty entrypoint or command becomes
 * null.
 */
export function parseImageConfigDocument(bytes: Buffer, architecture: string, what: string): ImageConfigDocument {
  const value = parseJson(bytes, what)
  if (!Value.Check(Configuration, value)) {
    throw new StartError('image', `${what}: its configuration does not follow the OCI image specification`)
  }
  const isForHere = (value.os ?? 'linux') === 'linux' && (value.architecture ?? architecture) === architecture
  if (!isForHere) {
    throw new StartError(
      'image',
      `${what} is for ${value.os ?? 'linux'}/${value.architecture ?? ''}; this worker runs linux/${architecture}`,
    )
  }
  const own = value.config ?? {}
  return {
    config: {
      env: own.Env ?? [],
      entrypoint: commandOrNull(own.Entrypoint),
      cmd: commandOrNull(own.Cmd),
      workdir: emptyToNull(own.WorkingDir),
      user: emptyToNull(own.User),
    },
    labels: own.Labels ?? {},
    diffIds: value.rootfs.diff_ids,
  }
}

/** This machine's architecture, as OCI documents name it. */
export function hostArchitecture(): string {
  return process.arch === 'x64' ? 'amd64' : process.arch
}

// umoci writes a cleared entrypoint as one empty string.
function commandOrNull(words: readonly string[] | null | undefined): readonly string[] | null {
  return words === undefined || words === null || words.every((word) => word === '') ? null : words
}

function emptyToNull(text: string | null | undefined): string | null {
  return text === undefined || text === '' ? null : text
}

function parseJson(bytes: Buffer, what: string): unknown {
  try {
    return JSON.parse(bytes.toString('utf8'))
  } catch (error) {
    throw new StartError('image', `${what}: the document is not JSON`, error)
  }
}
