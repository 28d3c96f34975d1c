import { createHash } from 'node:crypto'
import { mkdir } from 'node:fs/promises'
import { join, resolve as resolvePath } from 'node:path'
import {
  canonicalReference,
  isLocalOnly,
  parseImageReference,
  type ImageReference,
} from '../../domain/spec/image-reference.ts'
import type { PullPolicy } from '../../domain/spec/spec.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { CommandError } from '../../lib/run-command.ts'
import { StartError } from '../start-error.ts'
import { findSourceInArchive, openArchive } from './archive.ts'
import { DEFAULT_IMAGE_LIMITS, type Image, type ImageLimits, type RegistryAuth } from './image.ts'
import { openLayerStore } from './layer-store.ts'
import { hostArchitecture } from './manifest.ts'
import { pullImage, type PullOutcome } from './pull.ts'
import { openImageRecords, type ImageRecord } from './image-records.ts'
import { DEFAULT_REGISTRY_TIMEOUTS, type RegistryTimeouts } from './registry-transport.ts'
import { makeSingleFlight } from '../../lib/single-flight.ts'
import type { ImageSource } from './source.ts'
import { openTempFolders } from './temp-folders.ts'

/**
 * The images of one worker. All state is on disk and survives a crash at any time. Several processes may open the same
 * folder. docs/decisions/0005-images.md defines who may use which image.
 */
export interface ImageStore {
  /**
   * Returns an image ready to be mounted, and pulls it if the policy requires that. Rejects with `StartError`: `image`
   * (invalid reference, missing or unusable image), `registry`, `host` or `cancelled`. `auth` is the credential for the
   * image's own registry. May be repeated. Equal requests at the same time share one pull.
   */
  resolve(reference: string, options: ResolveOptions): Promise<Image>
  /** Lists the canonical references in the store. */
  list(): Promise<readonly string[]>
  /** Returns the record of a reference. Null when the store doesn't have it. */
  inspect(reference: string): Promise<ImageRecord | null>
  /**
   * Stores the image in a file or folder (`docker save`, OCI archive, OCI layout) under a reference. Replaces an older
   * image.
   */
  load(path: string, reference: string, signal: AbortSignal): Promise<Image>
  /** Like `load`, but for an OCI layout that `write` creates in a temporary folder of the store. */
  build(reference: string, write: (dir: string) => Promise<void>, signal: AbortSignal): Promise<Image>
  /** Removes a reference. The next `collectGarbage` deletes its layers. A missing reference is fine. */
  remove(reference: string): Promise<void>
  /**
   * Deletes layers that no reference needs and that are not in `inUse`, which contains folders as in `Image.layers`.
   * Returns the number of deleted layers.
   */
  collectGarbage(inUse: ReadonlySet<string>): Promise<number>
}

export type ResolveOptions = {
  readonly policy: PullPolicy
  readonly auth: RegistryAuth | null
  readonly signal: AbortSignal
  /**
   * Called when this request itself fetched the image. Not called when the image was in the store or another request
   * fetched it.
   */
  readonly onFetched?: () => void
}

export type ImageStoreDeps = {
  /**
   * The folder of the store, created when missing. Its path must not contain characters with a special meaning in
   * overlay mount options.
   */
  readonly dir: string
  /** Added to every owner and group in the unpacked layers. */
  readonly uidShift: number
  readonly clock: Clock
  readonly log: Log
  /** The registry for references that name none. */
  readonly defaultRegistry: string
  readonly limits?: ImageLimits
  readonly timeouts?: RegistryTimeouts
}

/** Opens the store, and deletes the unfinished work of processes that died. */
export async function openImageStore(deps: ImageStoreDeps): Promise<ImageStore> {
  const { uidShift, clock, log, defaultRegistry } = deps
  const dir = resolvePath(deps.dir)
  if (/[,:\\"\s]/.test(dir))
    throw new Error(`the image store can't be in '${dir}': overlay mounts need a path without , : \\ " and spaces`)
  const limits = deps.limits ?? DEFAULT_IMAGE_LIMITS
  const timeouts = deps.timeouts ?? DEFAULT_REGISTRY_TIMEOUTS
  const architecture = hostArchitecture()
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const temp = await openTempFolders(join(dir, 'tmp'), log)
  const records = await openImageRecords(join(dir, 'images'), temp)
  const layers = await openLayerStore({ dir: join(dir, 'layers'), uidShift, temp, limits, clock })
  const pulls = makeSingleFlight<ImageRecord>()

  function parseReference(requested: string): ImageReference {
    const parsed = parseImageReference(requested, defaultRegistry)
    if (!parsed.ok) throw new StartError('image', parsed.problem)
    return parsed.reference
  }

  function toImage(record: ImageRecord, reference: string): Image {
    layers.markUsed(record.diff_ids)
    // An overlay refuses a repeated lower folder. Only the uppermost occurrence of a repeated layer matters for the
    // visible files.
    const diffIds = record.diff_ids.filter((diffId, at) => !record.diff_ids.includes(diffId, at + 1))
    const { digest, config } = record
    return { reference, digest, config, layers: diffIds.map((diffId) => layers.pathOf(diffId)) }
  }

  async function install(source: ImageSource, reference: string, options: InstallOptions): Promise<ImageRecord> {
    const { digest, resolvedDigest, configDocument: document } = source
    const release = layers.pin(document.diffIds)
    const stop = new AbortController()
    const signal = AbortSignal.any([options.signal, stop.signal])
    const work = source.layers.map(({ diffId, open }) =>
      layers.ensure(diffId, open, signal).catch((error: unknown) => {
        stop.abort(error) // without this layer, the others are useless
        throw error
      }),
    )
    try {
      await Promise.all(work)
      const record: ImageRecord = {
        reference,
        digest,
        resolved_digest: resolvedDigest,
        origin: options.origin,
        stored_at: clock.now().toISOString(),
        labels: { ...document.labels },
        config: toRecordConfig(document.config),
        diff_ids: [...document.diffIds],
      }
      await records.write(record)
      return record
    } catch (error) {
      await Promise.allSettled(work)
      throw options.signal.aborted
        ? new StartError('cancelled', `getting ${reference} was cancelled`, error)
        : toHostError(error, reference)
    } finally {
      release()
    }
  }

  async function pull(
    reference: ImageReference,
    record: ImageRecord | null,
    options: ResolveOptions,
  ): Promise<ImageRecord> {
    const canonical = canonicalReference(reference)
    const outcome: PullOutcome = await pullImage(
      { clock, limits, timeouts, architecture },
      { reference, record, ...options },
    )
    switch (outcome.kind) {
      case 'current':
        return outcome.record
      case 'now_public': {
        const opened: ImageRecord = { ...outcome.record, origin: 'anonymous' }
        await records.write(opened)
        return opened
      }
      case 'fetch': {
        const startedMs = clock.monotonicMs()
        const fetched = await install(outcome.source, canonical, { origin: outcome.origin, signal: options.signal })
        options.onFetched?.()
        log.info(
          { image: canonical, digest: fetched.digest, ms: Math.round(clock.monotonicMs() - startedMs) },
          'pulled an image',
        )
        return fetched
      }
    }
  }

  async function withTempFolder<T>(work: (folder: string) => Promise<T>): Promise<T> {
    const folder = await temp.create()
    try {
      return await work(folder)
    } finally {
      await temp.remove(folder)
    }
  }

  async function load({ path, reference, requested, folder, signal }: ArchiveLoad): Promise<Image> {
    const files = await openArchive(path, { temp: folder, limits })
    const source = await findSourceInArchive(files, { imageName: path, architecture, limits, signal })
    return toImage(await install(source, canonicalReference(reference), { origin: 'loaded', signal }), requested)
  }

  return {
    async resolve(requested, options) {
      const reference = parseReference(requested)
      const canonical = canonicalReference(reference)
      const record = await records.read(canonical)
      const mustAsk = options.policy === 'always' || record?.origin === 'credential'
      if (record !== null && (isLocalOnly(reference) || !mustAsk)) return toImage(record, requested)
      if (isLocalOnly(reference)) {
        throw new StartError(
          'image',
          `image ${canonical} is not in this worker's store; put it there with 'sandyard image load'`,
        )
      }
      if (record === null && options.policy === 'never') {
        throw new StartError(
          'image',
          `image ${canonical} is not in this worker's store, and the pull policy is 'never'`,
        )
      }
      const { result } = pulls.join(
        pullKey(canonical, options),
        (signal) => pull(reference, record, { ...options, signal }),
        options.signal,
      )
      try {
        return toImage(await result, requested)
      } catch (error) {
        throw options.signal.aborted
          ? new StartError('cancelled', `the pull of ${canonical} was cancelled`, error)
          : error
      }
    },
    list: async () => (await records.list()).map(({ reference }) => reference).sort(),
    inspect: async (reference) => records.read(canonicalReference(parseReference(reference))),
    async load(path, requested, signal) {
      const reference = parseReference(requested)
      return withTempFolder((folder) => load({ path, reference, requested, folder, signal }))
    },
    async build(requested, write, signal) {
      const reference = parseReference(requested)
      return withTempFolder(async (folder) => {
        await write(folder)
        return load({ path: folder, reference, requested, folder, signal })
      })
    },
    remove: async (reference) => records.remove(canonicalReference(parseReference(reference))),
    async collectGarbage(inUse) {
      const named = (await records.list()).flatMap((record) => record.diff_ids.map((diffId) => layers.pathOf(diffId)))
      return layers.collectGarbage(new Set([...named, ...inUse]))
    },
  }
}

// Failures of the store's disk and tools become `StartError('host')`. Any other error that is not a `StartError` is a
// bug and stays unchanged.
function toHostError(error: unknown, reference: string): unknown {
  const isOfHost = error instanceof CommandError || (error instanceof Error && 'syscall' in error)
  return isOfHost
    ? new StartError('host', `image ${reference} could not be stored on this worker: ${error.message}`, error)
    : error
}

type ArchiveLoad = {
  readonly path: string
  readonly reference: ImageReference
  readonly requested: string
  /** A temporary folder in which an archive can be decompressed. */
  readonly folder: string
  readonly signal: AbortSignal
}
type InstallOptions = { readonly origin: ImageRecord['origin']; readonly signal: AbortSignal }

function toRecordConfig(config: Image['config']): ImageRecord['config'] {
  const { env, entrypoint, cmd, workdir, user } = config
  return { env: [...env], entrypoint: entrypoint && [...entrypoint], cmd: cmd && [...cmd], workdir, user }
}

// Callers with different credentials must not share a pull, because one of them may have no access.
function pullKey(canonical: string, { policy, auth }: ResolveOptions): string {
  const secret =
    auth === null
      ? ''
      : createHash('sha256')
          .update(JSON.stringify([auth.username, auth.password]))
          .digest('hex')
  return `${canonical} ${policy} ${secret}`
}
