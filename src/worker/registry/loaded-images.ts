import { createReadStream } from 'node:fs'
import { mkdir, readFile, readdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import { canonicalReference, parseImageReference, type ImageReference } from '../../domain/spec/image-reference.ts'
import type { Clock } from '../../lib/clock.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import { statOrNull } from '../../lib/files.ts'
import type { Log } from '../../lib/log.ts'
import { findSourceInArchive, openArchive } from '../images/archive.ts'
import { openImageRecords, toRecordConfig, type ImageRecord } from '../images/image-records.ts'
import type { ImageLimits } from '../images/image.ts'
import { hostArchitecture, parseManifest, type Descriptor } from '../images/manifest.ts'
import type { ImageSource } from '../images/source.ts'
import { openTempFolders } from '../images/temp-folders.ts'
import { makeStoreSpace } from '../images/store-space.ts'
import type { DiskReserve } from '../disk-reserve.ts'
import { StartError } from '../start-error.ts'
import type { ByteRange } from './byte-range.ts'
import { storeBlobs } from './store-blobs.ts'

/**
 * Images that were loaded from files, kept as the blobs of a registry and never unpacked, so an unprivileged worker can have them. All
 * state is on disk and survives a crash at any time. Several processes may open the same folder.
 */
export type LoadedImages = {
  list(): Promise<readonly ImageRecord[]>
  /** Returns the record of a reference, or null. Rejects with `StartError` for an invalid reference. */
  inspect(reference: string): Promise<ImageRecord | null>
  /** Stores the image in a file or folder (`docker save`, OCI archive, OCI layout) under a reference. Replaces an older image. */
  load(path: string, reference: string, signal: AbortSignal): Promise<ImageRecord>
  /** Like `load`, but for an OCI layout that `write` creates in a temporary folder of the store. */
  build(reference: string, write: (dir: string) => Promise<void>, signal: AbortSignal): Promise<ImageRecord>
  /** Removes a reference. The next `prune` deletes its blobs. A missing reference is fine. */
  remove(reference: string): Promise<void>
  /** Deletes the blobs that no image has. Returns how many. */
  prune(): Promise<number>
  /** The manifest of an image and what it names. Null if a file of it is missing. */
  readManifest(digest: string): Promise<StoredManifest | null>
  /** Null if there is no such blob. */
  findBlob(digest: string): Promise<BlobContent | null>
}

/** What a registry serves of images. */
export type PullableImages = Pick<LoadedImages, 'list' | 'readManifest' | 'findBlob'>

/** The content of a blob. */
export type BlobContent = {
  readonly sizeBytes: number
  /** Reads a part of it, or the whole. */
  open(range: ByteRange | null): Readable
}

/** A manifest as it is stored, with the blobs of its image. */
export type StoredManifest = { readonly bytes: Buffer; readonly blobs: readonly Descriptor[] }

type LoadedImagesDeps = {
  /** The folder of the store, created when missing. */
  readonly dir: string
  readonly limits: ImageLimits
  /** The most that all blobs may have together. */
  readonly storeBytes: number
  readonly reserve: DiskReserve
  /** The registry of references that name none. */
  readonly defaultRegistry: string
  readonly clock: Clock
  readonly log: Log
}

/** How long a blob stays that no image has yet: another process may be about to write the record. */
const PRUNE_GRACE_MS = 10 * 60_000

/** Opens the store, and deletes the unfinished work of processes that died. */
export async function openLoadedImages(deps: LoadedImagesDeps): Promise<LoadedImages> {
  const { dir, limits, storeBytes, reserve, defaultRegistry, clock, log } = deps
  const blobsDir = join(dir, 'blobs')
  await mkdir(blobsDir, { recursive: true, mode: 0o700 })
  const temp = await openTempFolders(join(dir, 'tmp'), log)
  const records = await openImageRecords(join(dir, 'images'), { temp, clock })
  const pathOf = (digest: string): string => join(blobsDir, digest.slice('sha256:'.length))

  const prune = async (): Promise<number> => {
    const kept = new Set<string>()
    for (const { digest } of await records.list())
      for (const blob of [digest, ...((await readManifest(digest))?.blobs ?? []).map((one) => one.digest)])
        kept.add(pathOf(blob))
    let deleted = 0
    for (const path of (await readdir(blobsDir)).map((name) => join(blobsDir, name))) {
      const found = kept.has(path) ? null : await statOrNull(path)
      if (found === null || clock.now().getTime() - found.mtimeMs < PRUNE_GRACE_MS) continue
      await rm(path, { force: true })
      deleted += 1
    }
    return deleted
  }
  const space = makeStoreSpace({
    limitBytes: storeBytes,
    sizes: {
      async total() {
        let bytes = 0
        for (const name of await readdir(blobsDir)) bytes += (await statOrNull(join(blobsDir, name)))?.size ?? 0
        return bytes
      },
    },
    reserve,
    evict: async () => void (await prune()),
    words: {
      undone: 'the image was not loaded',
      kept: 'loaded images stay until `sandyard image remove` removes them',
    },
  })
  const parse = (requested: string): ImageReference => {
    const parsed = parseImageReference(requested, defaultRegistry)
    if (!parsed.ok) throw new StartError('image', parsed.problem)
    return parsed.reference
  }
  const install = async (source: ImageSource, reference: string, folder: string, signal: AbortSignal) => {
    const claim = space.claim()
    const options = { name: reference, folder, pathOf, limits, claim, signal }
    const digest = await storeBlobs(source, options).finally(() => {
      claim.release()
    })
    const { labels, config, diffIds } = source.configDocument
    const record: ImageRecord = {
      reference,
      digest,
      resolved_digest: digest,
      origin: 'loaded',
      stored_at: clock.now().toISOString(),
      labels: { ...labels },
      config: toRecordConfig(config),
      diff_ids: [...diffIds],
    }
    await records.write(record)
    return record
  }
  const load = async (path: string, requested: string, folder: string, signal: AbortSignal): Promise<ImageRecord> => {
    const reference = canonicalReference(parse(requested))
    const files = await openArchive(path, { temp: folder, limits })
    const architecture = hostArchitecture()
    const source = await findSourceInArchive(files, { imageName: path, architecture, limits, signal })
    return await install(source, reference, folder, signal)
  }
  const readManifest = async (digest: string): Promise<StoredManifest | null> => {
    try {
      const bytes = await readFile(pathOf(digest))
      const parsed = parseManifest(bytes, digest)
      if (parsed.kind === 'index') return null
      return { bytes, blobs: [parsed.manifest.config, ...parsed.manifest.layers] }
    } catch (error) {
      if (hasErrorCode(error, 'ENOENT')) return null
      throw error
    }
  }

  return {
    list: () => records.list(),
    inspect: async (reference) => records.read(canonicalReference(parse(reference))),
    load: (path, reference, signal) => temp.use((folder) => load(path, reference, folder, signal)),
    build: (reference, write, signal) =>
      temp.use(async (folder) => {
        await write(folder)
        return await load(folder, reference, folder, signal)
      }),
    remove: async (reference) => records.remove(canonicalReference(parse(reference))),
    prune,
    readManifest,
    async findBlob(digest) {
      try {
        const path = pathOf(digest)
        return { sizeBytes: (await stat(path)).size, open: (range) => createReadStream(path, range ?? {}) }
      } catch (error) {
        if (hasErrorCode(error, 'ENOENT')) return null
        throw error
      }
    },
  }
}
