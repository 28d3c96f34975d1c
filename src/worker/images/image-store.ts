import { existsSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join, resolve as resolvePath } from 'node:path'
import {
  canonicalReference,
  isLocalOnly,
  parseImageReference,
  type ImageReference,
} from '../../domain/spec/image-reference.ts'
import type { OrgId } from '../../domain/ids.ts'
import type { PullPolicy } from '../../domain/spec/spec.ts'
import type { Clock } from '../../lib/clock.ts'
import type { GuardedHttp } from '../../lib/outbound/guarded-http.ts'
import type { Log } from '../../lib/log.ts'
import { StartError } from '../start-error.ts'
import { findSourceInArchive, openArchive } from './archive.ts'
import { DEFAULT_IMAGE_LIMITS, type Image, type ImageLimits, type RegistryAuth } from './image.ts'
import { makeImageBudget } from './image-budget.ts'
import { toHostError } from './host-error.ts'
import { FOR_EVERYONE, type LayerUse } from './layers/layer-store.ts'
import { openLimitedLayers, type LayerLimits } from './layers/limited-layers.ts'
import { hostArchitecture } from './manifest.ts'
import { pullImage, pullKey, type PullOutcome } from './pull.ts'
import { openImageRecords, toRecordConfig, type ImageRecord } from './image-records.ts'
import { DEFAULT_REGISTRY_TIMEOUTS, type RegistryTimeouts } from './registry/registry-transport.ts'
import { makeSingleFlight } from '../../lib/turns/single-flight.ts'
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
   * Deletes layers that no reference needs and whose folders are not in `inUse`. These folders are written as in
   * `Image.layers`. Returns the number of deleted layers.
   */
  collectGarbage(inUse: ReadonlySet<string>): Promise<number>
  /**
   * Deletes layers that nothing needs, and evicts the least recently used images if the store is beyond its limit. For
   * repeated calls while the worker runs.
   */
  trim(): Promise<void>
}

export type ResolveOptions = {
  /** The organization that wants the image. It gets only layers that were proved to it or to everyone. */
  readonly org: OrgId
  readonly policy: PullPolicy
  readonly auth: RegistryAuth | null
  readonly signal: AbortSignal
  /**
   * Called when this request itself fetched the image. Not called when the image was in the store or another request
   * fetched it.
   */
  readonly onFetched?: () => void
}

export type ImageStoreDeps = LayerLimits & {
  /**
   * The folder of the store, created when missing. Its path must not contain characters with a special meaning in
   * overlay mount options.
   */
  readonly dir: string
  /** Added to every owner and group in the unpacked layers. */
  readonly uidShift: number
  readonly clock: Clock
  readonly log: Log
  /** The client for all requests to registries. It decides which addresses they may reach. */
  readonly http: GuardedHttp
  /** The registry for references that contain no registry. */
  readonly defaultRegistry: string
  readonly limits?: ImageLimits
  readonly timeouts?: RegistryTimeouts
  /** Reads the folders of the layers that sandboxes need. The store never evicts these layers. */
  readonly readLayersInUse?: () => Promise<ReadonlySet<string>>
}

const readNone = (): Promise<ReadonlySet<string>> => Promise.resolve(new Set())

/** Opens the store, and deletes the unfinished work of processes that died. */
export async function openImageStore(deps: ImageStoreDeps): Promise<ImageStore> {
  const { clock, log, http, defaultRegistry } = deps
  const dir = resolvePath(deps.dir)
  if (/[,:\\"\s]/.test(dir))
    throw new Error(`the image store can't be in '${dir}': overlay mounts need a path without , : \\ " or spaces`)
  const limits = deps.limits ?? DEFAULT_IMAGE_LIMITS
  const timeouts = deps.timeouts ?? DEFAULT_REGISTRY_TIMEOUTS
  const architecture = hostArchitecture()
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const temp = await openTempFolders(join(dir, 'tmp'), log)
  const records = await openImageRecords(join(dir, 'images'), { temp, clock })
  const { readLayersInUse = readNone } = deps
  const { layers, space } = await openLimitedLayers({ ...deps, dir, records, temp, limits, readLayersInUse })
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

  // A process that evicts images removes the record first, but it may have read an older list of records.
  async function readUsable(canonical: string): Promise<ImageRecord | null> {
    const record = records.read(canonical)
    return record?.diff_ids.every((diffId) => existsSync(layers.pathOf(diffId))) === true ? record : null
  }

  async function findNamedLayers(): Promise<ReadonlySet<string>> {
    return new Set((await records.list()).flatMap((record) => record.diff_ids.map((diffId) => layers.pathOf(diffId))))
  }

  async function collectGarbage(inUse: ReadonlySet<string>): Promise<number> {
    return layers.collectGarbage(new Set([...(await findNamedLayers()), ...inUse]))
  }

  async function install(source: ImageSource, reference: string, options: InstallOptions): Promise<ImageRecord> {
    const { digest, resolvedDigest, configDocument: document } = source
    const pin = layers.pin(document.diffIds)
    const budget = makeImageBudget(`image ${reference}`, limits)
    const unpacked: string[] = []
    const stop = new AbortController()
    const signal = AbortSignal.any([options.signal, stop.signal])
    const work = source.layers.map(async ({ diffId, open }) => {
      try {
        if (await layers.ensure(diffId, open, { ...options, budget, signal })) unpacked.push(diffId)
      } catch (error) {
        stop.abort(error) // stops the other downloads: without this layer, the image is unusable
        throw error
      }
    })
    try {
      await Promise.all(work)
      const record: ImageRecord = {
        reference,
        digest,
        resolved_digest: resolvedDigest,
        origin: options.origin(),
        stored_at: clock.now().toISOString(),
        labels: { ...document.labels },
        config: toRecordConfig(document.config),
        diff_ids: [...document.diffIds],
      }
      await records.write(record)
      pin.release()
      return record
    } catch (error) {
      await Promise.allSettled(work)
      pin.abandon()
      await layers.discard(unpacked, await findNamedLayers())
      throw options.signal.aborted
        ? new StartError('cancelled', `getting ${reference} was cancelled`, error)
        : toHostError(error, reference)
    }
  }

  async function pull(
    reference: ImageReference,
    stored: { readonly record: ImageRecord | null; readonly isProven: boolean },
    options: ResolveOptions,
  ): Promise<ImageRecord> {
    const canonical = canonicalReference(reference)
    const outcome: PullOutcome = await pullImage(
      { clock, http, limits, timeouts, architecture },
      { reference, ...stored, ...options },
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
        const { source, origin } = outcome
        const fetched = await install(source, canonical, {
          origin,
          signal: options.signal,
          caller: options.org,
          sharesWith: options.auth === null ? 'everyone' : options.org,
          provedTo: () => (origin() === 'anonymous' ? 'everyone' : options.org),
        })
        options.onFetched?.()
        log.info(
          { image: canonical, digest: fetched.digest, ms: Math.round(clock.monotonicMs() - startedMs) },
          'pulled an image',
        )
        return fetched
      }
    }
  }

  async function load({ path, reference, requested, folder, signal }: ArchiveLoad): Promise<Image> {
    const files = await openArchive(path, { temp: folder, limits })
    const source = await findSourceInArchive(files, { imageName: path, architecture, limits, signal })
    const options: InstallOptions = { origin: () => 'loaded', signal, ...FOR_EVERYONE }
    return toImage(await install(source, canonicalReference(reference), options), requested)
  }

  return {
    async resolve(requested, options) {
      const reference = parseReference(requested)
      const canonical = canonicalReference(reference)
      const record = await readUsable(canonical)
      if (record !== null) await records.touch(canonical)
      const mustAsk = options.policy === 'always' || record?.origin === 'credential'
      // The operator loaded an image for everyone. An earlier version recorded no proofs, and such an image can't be pulled.
      const isProven = record !== null && (record.origin === 'loaded' || layers.areProven(record.diff_ids, options.org))
      if (record !== null && (isLocalOnly(reference) || (isProven && !mustAsk))) return toImage(record, requested)
      if (isLocalOnly(reference)) {
        throw new StartError(
          'image',
          `image ${canonical} is not in this worker's store; put it there with 'sandyard image load'`,
        )
      }
      if (!isProven && options.policy === 'never') {
        throw new StartError(
          'image',
          `image ${canonical} is not in this worker's store, and the pull policy is 'never'`,
        )
      }
      const { result } = pulls.join(
        pullKey(canonical, options),
        (signal) => pull(reference, { record, isProven }, { ...options, signal }),
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
      return temp.use((folder) => load({ path, reference, requested, folder, signal }))
    },
    async build(requested, write, signal) {
      const reference = parseReference(requested)
      return temp.use(async (folder) => {
        await write(folder)
        return load({ path: folder, reference, requested, folder, signal })
      })
    },
    remove: async (reference) => records.remove(canonicalReference(parseReference(reference))),
    collectGarbage,
    async trim() {
      await collectGarbage(await readLayersInUse())
      await space.trim()
    },
  }
}

type ArchiveLoad = {
  readonly path: string
  readonly reference: ImageReference
  readonly requested: string
  /** A temporary folder in which an archive can be decompressed. */
  readonly folder: string
  readonly signal: AbortSignal
}
type InstallOptions = {
  /** Called after all layers are stored. */
  readonly origin: () => ImageRecord['origin']
  readonly signal: AbortSignal
} & LayerUse
