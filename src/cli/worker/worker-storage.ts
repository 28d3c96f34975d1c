import { ociKey } from '../../worker/mounts.ts'
import { existsSync } from 'node:fs'
import { mkdir, statfs } from 'node:fs/promises'
import { networkInterfaces } from 'node:os'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { judgeOutbound, parseNamedDestination } from '../../domain/network/outbound-rule.ts'
import { proxyFor } from '../../domain/network/proxy-rule.ts'
import { systemClock } from '../../lib/clock.ts'
import { makeGuardedHttp, type GuardedHttp } from '../../lib/outbound/guarded-http.ts'
import type { Log } from '../../lib/log.ts'
import type { ImageResolver } from '../../worker/drivers/shared/desired-run.ts'
import { openLayerSizes } from '../../worker/images/layers/layer-sizes.ts'
import { readLayersInUse } from '../../worker/drivers/oci/disk/pinned-image.ts'
import { makeDiskReserve, type DiskReserve } from '../../worker/disk-reserve.ts'
import { DEFAULT_IMAGE_LIMITS, type ImageLimits } from '../../worker/images/image.ts'
import type { OpenSnapshotFiles } from '../../worker/images/fetch-snapshot.ts'
import { openImageStore, type ImageStore } from '../../worker/images/image-store.ts'
import { openSandboxLogs } from '../../worker/logs/log-store.ts'
import type { SandboxLogs } from '../../worker/logs/logs.ts'
import { openSandboxMetrics, type SandboxMetrics } from '../../worker/metrics/sandbox-metrics.ts'
import type { OwnRanges } from '../../worker/network/rules/own-ranges.ts'
import { openVolumeStorage, type StorageSettings } from '../../worker/volumes/open-volume-storage.ts'
import type { VolumeStorage } from '../../worker/volumes/volume-storage.ts'
import { readInstallationId, type DataFolder } from '../server/data-folder.ts'

/** The id on disk of user 0 of every sandbox, in image layers, disks and volumes. */
export const UID_SHIFT = 100_000

/** The folder of the image store. */
export function imagesFolder(config: Config): string {
  return join(config.dataDir, 'images')
}

/** Opens the image store of an installation. The server and `sandyard image` may have the store open at the same time. */
export async function openImages(config: Config, log: Log): Promise<ImageStore> {
  const dir = imagesFolder(config)
  await mkdir(dir, { recursive: true, mode: 0o700 })
  return openImageStore({
    dir,
    storeBytes: await storeBytesOf(config, dir),
    reserve: diskReserve(config),
    readLayersInUse: () => readSandboxLayers(config),
    uidShift: UID_SHIFT,
    clock: systemClock,
    log,
    http: openOutboundHttp(config),
    defaultRegistry: config.defaultRegistry,
    limits: imageLimits(config),
  })
}

/** The limits for one image. */
export function imageLimits({ imageMaxGib, imageMaxFiles, imageMaxLayers }: Config): ImageLimits {
  return {
    ...DEFAULT_IMAGE_LIMITS,
    unpackedImageBytes: imageMaxGib * 1024 ** 3,
    filesPerImage: imageMaxFiles,
    layersPerImage: imageMaxLayers,
  }
}

/** Reads the size of all image layers. It works while the store is open elsewhere. */
export async function readImageBytes(config: Config): Promise<number> {
  const layersDir = join(imagesFolder(config), 'layers')
  if (!existsSync(layersDir)) return 0
  return (await openLayerSizes({ dir: join(imagesFolder(config), 'sizes'), layersDir })).total()
}

/** The client for what tenants make a worker fetch. The operator opens private addresses by naming them. */
function openOutboundHttp({ registriesAllowed, defaultRegistry, httpsProxy, noProxy }: Config): GuardedHttp {
  const inherent = parseNamedDestination(defaultRegistry.toLowerCase()) // the operator named it too
  const named = [...(registriesAllowed ?? []), ...(inherent === null ? [] : [inherent])]
  const own = (): readonly string[] =>
    Object.values(networkInterfaces()).flatMap((addresses) => (addresses ?? []).map(({ address }) => address))
  const rule = { proxy: httpsProxy, direct: noProxy ?? [] }
  return makeGuardedHttp({
    judge: ({ url, address }) => judgeOutbound({ named, own: own() }, url, address),
    proxyFor: (url) => proxyFor(rule, url),
  })
}

/** The reserve of the file system with the data folder. */
export function diskReserve(config: Config): DiskReserve {
  return makeDiskReserve(config.dataDir, config.diskReserveMib)
}

/** The share of the file system that images may take if no setting says otherwise. */
const STORE_SHARE = 1 / 4

/** The most that all images in a folder may have together. */
export async function storeBytesOf({ imageStoreGib }: Pick<Config, 'imageStoreGib'>, dir: string): Promise<number> {
  if (imageStoreGib !== null) return imageStoreGib * 1024 ** 3
  const { blocks, bsize } = await statfs(dir)
  return blocks * bsize * STORE_SHARE
}

/** Deletes the image layers that no reference and no sandbox uses. Resolves with the number of deleted layers. */
export async function deleteUnusedLayers(config: Config, images: ImageStore): Promise<number> {
  return images.collectGarbage(await readSandboxLayers(config))
}

async function readSandboxLayers(config: Config): Promise<ReadonlySet<string>> {
  const id = await readInstallationId(config.dataDir)
  const key = id === null ? null : ociKey(id)
  return await readLayersInUse({ dir: ociFolder(config), imagesDir: imagesFolder(config), key })
}

/** The folder in which the driver for OCI runtimes stores its sandboxes. */
export function ociFolder(config: Pick<Config, 'dataDir'>): string {
  return join(config.dataDir, 'sandboxes')
}

/**
 * The folder in which the driver for microVMs stores its sandboxes. The folder's name is short because Linux limits the length
 * of socket paths.
 */
export function microVmFolder(config: Config): string {
  return join(config.dataDir, 'vm')
}

/** The file in which a worker that fences itself stores its renew deadline. */
export function deadlineFilePath(config: Config): string {
  return join(config.dataDir, 'lease.json')
}

/** The file in which a worker stores the UUID of its current process. See `worker/agent/incarnation.ts`. */
export function incarnationFilePath(config: Config): string {
  return join(config.dataDir, 'life.json')
}

/** The settings of the volume storage, derived from the configuration. */
export function volumeStorageConfig(config: Config): Omit<StorageSettings, 'key'> {
  return {
    dir: join(config.dataDir, 'volumes'),
    sharedDir: config.sharedVolumesDir,
    volumePoolGib: config.volumePoolGib,
  }
}

/** The key of the volume storage of an installation. */
export function volumesKey({ namePrefix }: Pick<DataFolder, 'namePrefix'>): string {
  return `${namePrefix}-volumes`
}

/** Opens the volume storage of an installation. Rejects when existing volumes can't be reached. */
export function openVolumes(config: Config, folder: Pick<DataFolder, 'namePrefix'>, log: Log): Promise<VolumeStorage> {
  const settings = { ...volumeStorageConfig(config), key: volumesKey(folder) }
  return openVolumeStorage(settings, {
    uidShift: UID_SHIFT,
    reserve: diskReserve(config),
    clock: systemClock,
    log,
  })
}

/** Opens the store for the logs of this worker's sandboxes. */
export function openLogs(config: Config, log: Log): Promise<SandboxLogs> {
  return openSandboxLogs({
    dir: join(config.dataDir, 'logs'),
    limits: { sandboxBytes: config.logLimitMib * 1024 * 1024, retentionMs: config.logKeepHours * 3_600_000 },
    clock: systemClock,
    log,
  })
}

/** Opens the store for what this worker's sandboxes use. */
export function openMetrics(config: Config, log: Log): Promise<SandboxMetrics> {
  return openSandboxMetrics({
    dir: join(config.dataDir, 'metrics'),
    retentionMs: config.logKeepHours * 3_600_000,
    clock: systemClock,
    log,
  })
}

/** What is needed to open a driver. */
export type DriverDeps = {
  readonly folder: Pick<DataFolder, 'path' | 'namePrefix'>
  readonly storage: VolumeStorage
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly metrics: Pick<SandboxMetrics, 'begin' | 'end'>
  readonly log: Log
  /** The addresses that this machine denies to sandboxes. */
  readonly ownRanges: OwnRanges
  /** Opens the files of another worker's snapshot. Null until the agent runs. */
  readonly openSnapshotFiles: () => OpenSnapshotFiles | null
  /** Makes the resolver of images count its pulls. Absent: nobody counts them. */
  readonly countPulls?: (images: ImageResolver) => ImageResolver
  /** The file of the worker's renew deadline; null for a worker that doesn't fence itself. */
  readonly deadlineFile: string | null
}
