import { createHash } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { mkdir, open, rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { pack, type Pack } from 'tar-stream'
import { digestOf } from './blob.ts'
import {
  DEMO_FOLDERS,
  DEMO_EXTRA_FILES,
  DEMO_LINKS,
  DEMO_PROGRAMS,
  type HostPrograms,
  demoFiles,
  findHostFiles,
  findHostPrograms,
  findLibraries,
} from './demo-contents.ts'
import type { ImageStore } from './image-store.ts'
import { hostArchitecture } from './manifest.ts'
import { type TarHeader, asBuffer } from './layers/tar-streams.ts'

/** The image that every worker has, even without a network. */
export const DEMO_REFERENCE = 'localhost/demo'
/**
 * The label that stores the fingerprint of the programs in a demo image, after `FORMAT_VERSION`. Increase that version
 * when a change of this file changes the image.
 */
const FINGERPRINT_LABEL = 'sandyard.demo.made-from'
const FORMAT_VERSION = '1'

/** The time limit for creating the image. It took 1.5 s (measured 2026-11). */
const TIMEOUT_MS = 120_000

/** The parts of a store of images that make the demo image. */
type DemoStore = Pick<ImageStore, 'inspect'> & {
  build(...given: Parameters<ImageStore['build']>): Promise<unknown>
}

/**
 * Creates the image `localhost/demo` from this host's programs, unless the store has an image of the same programs.
 * Returns whether it created the image. Doesn't replace an image that somebody loaded under that name. May be repeated.
 * If no program has changed, the function only reads the programs' dates.
 */
export async function ensureDemoImage(store: DemoStore): Promise<boolean> {
  const programs = await findHostPrograms(DEMO_PROGRAMS)
  const present = await store.inspect(DEMO_REFERENCE)
  const madeFrom = present?.labels[FINGERPRINT_LABEL]
  if (present !== null && (madeFrom === undefined || madeFrom === fingerprintLabel(programs))) return false
  const write = async (outDir: string): Promise<void> => {
    await writeDemoImage({ outDir, programs })
  }
  await store.build(DEMO_REFERENCE, write, AbortSignal.timeout(TIMEOUT_MS))
  return true
}

/**
 * Writes an OCI layout with an image of the given programs, their libraries and a few files. The same programs produce
 * the same bytes. Returns the digest of the manifest.
 */
export async function writeDemoImage({
  outDir,
  programs,
}: {
  readonly outDir: string
  readonly programs: HostPrograms
}): Promise<string> {
  const blobs = join(outDir, 'blobs/sha256')
  await mkdir(blobs, { recursive: true })
  const layer = await writeLayer(blobs, programs)
  const configuration = json({
    os: 'linux',
    architecture: hostArchitecture(),
    config: {
      Cmd: ['/bin/sh'],
      Env: ['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'],
      Labels: { [FINGERPRINT_LABEL]: fingerprintLabel(programs) },
    },
    rootfs: { type: 'layers', diff_ids: [layer.digest] },
  })
  const manifest = json({
    schemaVersion: 2,
    mediaType: 'application/vnd.oci.image.manifest.v1+json',
    config: descriptor('config.v1+json', configuration),
    layers: [{ mediaType: 'application/vnd.oci.image.layer.v1.tar', digest: layer.digest, size: layer.sizeBytes }],
  })
  for (const blob of [configuration, manifest]) await writeFile(join(blobs, hexOf(digestOf(blob))), blob)
  await writeFile(join(outDir, 'oci-layout'), json({ imageLayoutVersion: '1.0.0' }))
  await writeFile(
    join(outDir, 'index.json'),
    json({ schemaVersion: 2, manifests: [descriptor('manifest.v1+json', manifest)] }),
  )
  return digestOf(manifest)
}

async function writeLayer(
  blobs: string,
  programs: HostPrograms,
): Promise<{ readonly digest: string; readonly sizeBytes: number }> {
  const files = [
    ...programs.files,
    ...(await findLibraries(programs.files)),
    ...(await findHostFiles(DEMO_EXTRA_FILES)),
  ]
  const tar = pack()
  const hash = createHash('sha256')
  let sizeBytes = 0
  const written = join(blobs, 'layer')
  const writing = pipeline(async function* () {
    for await (const chunk of tar) {
      const bytes = asBuffer(chunk)
      hash.update(bytes)
      sizeBytes += bytes.length
      yield bytes
    }
  }, createWriteStream(written))
  const filling = fillLayer(tar, { files, links: programs.links }).catch((error: unknown) => {
    tar.destroy(error instanceof Error ? error : new Error('a file of the host could not be read'))
    throw error
  })
  const [filled, wrote] = await Promise.allSettled([filling, writing])
  if (filled.status === 'rejected') throw filled.reason
  if (wrote.status === 'rejected') throw wrote.reason
  const hex = hash.digest('hex')
  await rename(written, join(blobs, hex))
  return { digest: `sha256:${hex}`, sizeBytes }
}

async function fillLayer(tar: Pack, { files, links }: Pick<HostPrograms, 'files' | 'links'>): Promise<void> {
  for (const { path, ...header } of DEMO_FOLDERS) addTo(tar, { ...header, name: path, type: 'directory' })
  for (const { path, target } of [...DEMO_LINKS, ...links])
    addTo(tar, { name: inRoot(path), type: 'symlink', linkname: target })
  for (const { path, content } of demoFiles())
    tar.entry(withoutHostFacts({ name: path, type: 'file', mode: 0o644 }), content)
  const byPath = new Map(files.map((file) => [file.path, file.source]))
  for (const [path, source] of [...byPath].sort(([a], [b]) => (a < b ? -1 : 1))) {
    const file = await open(source, 'r')
    try {
      const content = await file.readFile()
      const isProgram = ((await file.stat()).mode & 0o111) !== 0
      const added = Promise.withResolvers<void>()
      const done = (error?: Error | null): void => {
        if (error) added.reject(error)
        else added.resolve()
      }
      const mode = isProgram ? 0o755 : 0o644
      tar.entry(withoutHostFacts({ name: inRoot(path), type: 'file', mode }), content, done).on('error', done)
      await added.promise
    } finally {
      await file.close()
    }
  }
  tar.finalize()
}

function addTo(tar: Pack, header: TarHeader): void {
  tar.entry(withoutHostFacts(header))
}

/** Removes the host's owners and times, so that the same programs produce the same bytes. */
function withoutHostFacts(header: TarHeader): TarHeader {
  return { uid: 0, gid: 0, ...header, mtime: new Date(0) }
}

function inRoot(path: string): string {
  return path.replace(/^\//, '')
}

function fingerprintLabel(programs: HostPrograms): string {
  return `${FORMAT_VERSION}:${programs.fingerprint}`
}

function descriptor(kind: string, blob: Buffer): object {
  return { mediaType: `application/vnd.oci.image.${kind}`, digest: digestOf(blob), size: blob.length }
}

function hexOf(digest: string): string {
  return digest.slice('sha256:'.length)
}

function json(value: object): Buffer {
  return Buffer.from(JSON.stringify(value), 'utf8')
}
