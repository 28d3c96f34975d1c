import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { readLayersInUse } from '../../worker/drivers/oci/disk/pinned-image.ts'
import { openImageStore, type ImageStore } from '../../worker/images/image-store.ts'
import { openSandboxLogs } from '../../worker/logs/log-store.ts'
import type { SandboxLogs } from '../../worker/logs/logs.ts'
import { openVolumeStorage, type StorageSettings } from '../../worker/volumes/open-volume-storage.ts'
import type { VolumeStorage } from '../../worker/volumes/volume-storage.ts'
import type { DataFolder } from '../server/data-folder.ts'

/** The host's user id that is user 0 in every sandbox. */
export const UID_SHIFT = 100_000

/** Opens the image store of an installation. The server and `sandyard image` may have it open at the same time. */
export function openImages(config: Config, log: Log): Promise<ImageStore> {
  return openImageStore({
    dir: join(config.dataDir, 'images'),
    uidShift: UID_SHIFT,
    clock: systemClock,
    log,
    defaultRegistry: config.defaultRegistry,
  })
}

/** Deletes the layers that no reference and no sandbox uses. Resolves with their number. */
export async function deleteUnusedLayers(config: Config, images: ImageStore): Promise<number> {
  return images.collectGarbage(await readLayersInUse(ociFolder(config)))
}

/** The folder in which the driver for OCI runtimes stores its sandboxes. */
export function ociFolder(config: Config): string {
  return join(config.dataDir, 'sandboxes')
}

/** The folder in which the driver for microVMs stores its sandboxes. Its name is short, because paths of sockets are limited. */
export function microVmFolder(config: Config): string {
  return join(config.dataDir, 'vm')
}

/** The file in which a worker that fences itself stores its renew deadline. */
export function deadlineFilePath(config: Config): string {
  return join(config.dataDir, 'lease.json')
}

/** Where a worker notes its life: see `worker/agent/incarnation.ts`. */
export function incarnationFilePath(config: Config): string {
  return join(config.dataDir, 'life.json')
}

/** Where volumes are stored, by the settings. */
export function volumeStorageConfig(config: Config): StorageSettings {
  return {
    dir: join(config.dataDir, 'volumes'),
    sharedDir: config.sharedVolumesDir,
    volumePoolGib: config.volumePoolGib,
  }
}

/** Opens the storage for volumes. Rejects when existing volumes can't be reached. */
export function openVolumes(config: Config, log: Log): Promise<VolumeStorage> {
  return openVolumeStorage(volumeStorageConfig(config), { uidShift: UID_SHIFT, clock: systemClock, log })
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

/** What a driver needs in order to open. */
export type DriverDeps = {
  readonly folder: DataFolder
  readonly storage: VolumeStorage
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly log: Log
  /** The file of the worker's renew deadline; null for a worker that doesn't fence itself. */
  readonly deadlineFile: string | null
}
