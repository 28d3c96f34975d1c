import { createHash } from 'node:crypto'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { gzipSync, zstdCompressSync } from 'node:zlib'
import { pack, type Header } from 'tar-stream'

/** One entry of a layer, by default a file. A whiteout is a file named `.wh.…`, as in any image. */
export type TestEntry = {
  readonly path: string
  readonly type?: Header['type']
  readonly content?: string | Buffer
  readonly mode?: number
  readonly uid?: number
  readonly gid?: number
  /** The target of a symlink or hard link. */
  readonly target?: string
  readonly pax?: Readonly<Record<string, string>>
}

export type TestImageOptions = {
  /** The layers, the lowest first. A Buffer is the complete tar stream of a layer. */
  readonly layers: readonly (readonly TestEntry[] | Buffer)[]
  readonly compression?: 'gzip' | 'zstd' | 'plain'
  /** The `config` object of the image configuration, such as `{ Cmd: ['/bin/sh'] }`. */
  readonly config?: object
  readonly architecture?: string
  /** The diff_ids of the configuration. By default, the real ones. */
  readonly diffIds?: readonly string[]
}

export type TestImage = {
  /** The digest of the manifest. */
  readonly digest: string
  readonly manifest: Buffer
  readonly configuration: Buffer
  readonly diffIds: readonly string[]
  /** Plain tar streams, the lowest first. */
  readonly tars: readonly Buffer[]
  readonly layerDigests: readonly string[]
  /** Configuration and layers by digest. */
  readonly blobs: ReadonlyMap<string, Buffer>
}

/** `sha256:…` of bytes. */
export function sha256(bytes: Buffer): string {
  return `sha256:${createHash('sha256').update(bytes).digest('hex')}`
}

/** The tar stream of a layer. */
export async function makeLayerTar(entries: readonly TestEntry[]): Promise<Buffer> {
  const tar = pack()
  for (const { path, type = 'file', content = '', mode, uid = 0, gid = 0, target, pax } of entries) {
    const header = {
      name: path,
      type,
      uid,
      gid,
      mtime: new Date(0),
      mode: 0o100000 | (mode ?? (type === 'directory' ? 0o755 : 0o644)),
      ...(target === undefined ? {} : { linkname: target }),
      ...(pax === undefined ? {} : { pax }),
    }
    if (type === 'file') tar.entry(header, content)
    else tar.entry(header)
  }
  tar.finalize()
  const chunks: Buffer[] = []
  for await (const chunk of tar) if (Buffer.isBuffer(chunk)) chunks.push(chunk)
  return Buffer.concat(chunks)
}

/** An image in memory. All digests are right unless an option says otherwise. */
export async function makeTestImage(options: TestImageOptions): Promise<TestImage> {
  const {
    layers,
    compression = 'gzip',
    config = {},
    architecture = process.arch === 'x64' ? 'amd64' : process.arch,
  } = options
  const tars = await Promise.all(layers.map(async (layer) => (Buffer.isBuffer(layer) ? layer : makeLayerTar(layer))))
  const packed = tars.map((tar) =>
    compression === 'gzip' ? gzipSync(tar) : compression === 'zstd' ? zstdCompressSync(tar) : tar,
  )
  const diffIds = options.diffIds ?? tars.map(sha256)
  const configuration = json({ os: 'linux', architecture, config, rootfs: { type: 'layers', diff_ids: diffIds } })
  const suffix = compression === 'plain' ? '' : `+${compression}`
  const manifest = json({
    schemaVersion: 2,
    mediaType: 'application/vnd.oci.image.manifest.v1+json',
    config: {
      mediaType: 'application/vnd.oci.image.config.v1+json',
      digest: sha256(configuration),
      size: configuration.length,
    },
    layers: packed.map((blob) => ({
      mediaType: `application/vnd.oci.image.layer.v1.tar${suffix}`,
      digest: sha256(blob),
      size: blob.length,
    })),
  })
  return {
    digest: sha256(manifest),
    manifest,
    configuration,
    diffIds,
    tars,
    layerDigests: packed.map(sha256),
    blobs: new Map([configuration, ...packed].map((blob) => [sha256(blob), blob])),
  }
}

/** An index with one image for this machine, and an entry for a platform that doesn't exist. */
export function makeIndex(image: TestImage): Buffer {
  const mediaType = 'application/vnd.oci.image.manifest.v1+json'
  const other = sha256(Buffer.from('another platform'))
  const architecture = process.arch === 'x64' ? 'amd64' : process.arch
  return json({
    schemaVersion: 2,
    mediaType: 'application/vnd.oci.image.index.v1+json',
    manifests: [
      { mediaType, digest: other, size: 1, platform: { os: 'linux', architecture: 'none' } },
      { mediaType, digest: image.digest, size: image.manifest.length, platform: { os: 'linux', architecture } },
    ],
  })
}

/** Writes the image as an OCI layout folder. */
export async function writeLayout(image: TestImage, dir: string): Promise<void> {
  await mkdir(join(dir, 'blobs/sha256'), { recursive: true })
  await writeFile(join(dir, 'oci-layout'), '{"imageLayoutVersion":"1.0.0"}')
  const mediaType = 'application/vnd.oci.image.manifest.v1+json'
  await writeFile(
    join(dir, 'index.json'),
    json({ schemaVersion: 2, manifests: [{ mediaType, digest: image.digest, size: image.manifest.length }] }),
  )
  for (const [digest, blob] of [...image.blobs, [image.digest, image.manifest] as const]) {
    await writeFile(join(dir, 'blobs/sha256', digest.slice(7)), blob)
  }
}

/**
 * The image in the format of `docker save` before Docker used OCI layouts: manifest.json, configuration, plain layers.
 */
export async function makeDockerArchive(image: TestImage): Promise<Buffer> {
  const names = image.tars.map((_, index) => `${String(index)}/layer.tar`)
  return makeLayerTar([
    { path: 'config.json', content: image.configuration },
    ...image.tars.map((content, index) => ({ path: `${String(index)}/layer.tar`, content })),
    { path: 'manifest.json', content: json([{ Config: 'config.json', RepoTags: ['demo:1'], Layers: names }]) },
  ])
}

function json(value: unknown): Buffer {
  return Buffer.from(JSON.stringify(value))
}
