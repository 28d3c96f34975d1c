import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { readLayersInUse } from '../../worker/drivers/oci/rootfs/layers-in-use.ts'
import { openImageStore, type ImageStore } from '../../worker/images/image-store.ts'
import { openSandboxLogs } from '../../worker/logs/log-store.ts'
import type { SandboxLogs } from '../../worker/logs/logs.ts'
import { openVolumeStorage, type StorageSettings } from '../../worker/volumes/open-volume-storage.ts'
import type { VolumeStorage } from '../../worker/volumes/volume-storage.ts'
import type { DataFolder } from '../server/data-folder.ts'

/** The host user that is user 0 of every sandbox. */
export const UID_SHIFT = 100_000

/** The image store of an installation; the server and `sandyard image` may have it open at once. */
export function openImages(config: Config, log: Log): Promise<ImageStore> {
  return openImageStore({
    dir: join(config.dataDir, 'images'),
    uidShift: UID_SHIFT,
    clock: systemClock,
    log,
    defaultRegistry: config.defaultRegistry,
  })
}

/** Deletes layers that no reference and no sandbox needs any more; answers how many. */
export async function deleteUnusedLayers(config: Config, images: ImageStore): Promise<number> {
  return images.collectGarbage(await readLayersInUse(ociFolder(config)))
}

/** Where the driver for OCI runtimes keeps its sandboxes. */
export function ociFolder(config: Config): string {
  return join(config.dataDir, 'sandboxes')
}

/** Where the driver for microVMs keeps its sandboxes; short, because sockets lie in it. */
export function microVmFolder(config: Config): string {
  return join(config.dataDir, 'vm')
}

/** Where a worker that fences itself keeps its lease. */
export function leaseFilePath(config: Config): string {
  return join(config.dataDir, 'lease.json')
}

/** Where a worker notes its life: see `worker/agent/incarnation.ts`. */
export function incarnationFilePath(config: Config): string {
  return join(config.dataDir, 'life.json')
}

/** Where the settings keep volumes. */
export function volumeStorageConfig(config: Config): StorageSettings {
  return {
    dir: join(config.dataDir, 'volumes'),
    sharedDir: config.sharedVolumesDir,
    volumePoolGib: config.volumePoolGib,
  }
}

/** Opens the storage for volumes. Rejects when the volumes that are there can't be reached. */
export function openVolumes(config: Config, log: Log): Promise<VolumeStorage> {
  return openVolumeStorage(volumeStorageConfig(config), { uidShift: UID_SHIFT, clock: systemClock, log })
}

/** Opens the logs of the sandboxes that run here. */
export function openLogs(config: Config, log: Log): Promise<SandboxLogs> {
  return openSandboxLogs({
    dir: join(config.dataDir, 'logs'),
    limits: { sandboxBytes: config.logLimitMib * 1024 * 1024, retentionMs: config.logKeepHours * 3_600_000 },
    clock: systemClock,
    log,
  })
}

/** What every driver that runs sandboxes is opened with. */
export type DriverDeps = {
  readonly folder: DataFolder
  readonly storage: VolumeStorage
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly log: Log
  /** The file of the lease that this worker runs sandboxes by; null: it needs none. */
  readonly leaseFile: string | null
}
