import { existsSync } from 'node:fs'
import { readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import type { Log } from '../../lib/log.ts'
import { chooseStorage } from '../../worker/volumes/open-volume-storage.ts'
import { volumePoolFile, volumePoolMountPoint } from '../../worker/volumes/volume-pool.ts'
import { takeVolumeSnapshots } from '../../worker/volumes/volume-snapshots.ts'
import { parseVolumeSubpath } from '../../worker/volumes/volume-storage.ts'
import type { DataFolder } from '../server/data-folder.ts'
import { openVolumes, volumesKey, volumeStorageConfig } from '../worker/worker-storage.ts'

/** A volume whose files can be read at `dir`. */
export type HeldVolume = { readonly name: string; readonly dir: string }

/** The volumes of a data folder, as they are at one moment where the storage can do that. */
export type HeldVolumes = {
  readonly volumes: readonly HeldVolume[]
  /** The size of the pool. Null: plain folders, which may change while they are read. */
  readonly poolBytes: number | null
  /** Which volumes the backup can't have. */
  readonly leftOut: readonly string[]
} & AsyncDisposable

const NOTHING: HeldVolumes = {
  volumes: [],
  poolBytes: null,
  leftOut: [],
  [Symbol.asyncDispose]: () => Promise.resolve(),
}

/** Finds the volumes. Takes snapshots of those in a pool, which disposing deletes. */
export async function holdVolumes(
  config: Config,
  folder: DataFolder,
  { isInUse, log }: { readonly isInUse: boolean; readonly log: Log },
): Promise<HeldVolumes> {
  const settings = volumeStorageConfig(config)
  if (settings.sharedDir !== null)
    return { ...NOTHING, leftOut: [`the volumes on the shared folder ${settings.sharedDir}: back it up yourself`] }
  if (!existsSync(settings.dir)) return NOTHING
  const choice = await chooseStorage(settings)
  if (choice.kind === 'folders') return { ...NOTHING, volumes: await listFolders(choice.root) }
  if (choice.isNew) return NOTHING
  const { size: poolBytes } = await stat(volumePoolFile(settings.dir))
  const storage = isInUse ? null : await openVolumes(config, folder, log)
  try {
    const snapshots = await takeVolumeSnapshots(storage?.root ?? volumePoolMountPoint(volumesKey(folder)))
    const volumes = snapshots.volumes.map(({ org_id, volume_id, dir }) => ({ name: `${org_id}/${volume_id}`, dir }))
    return {
      volumes,
      poolBytes,
      leftOut: snapshots.leftOut,
      async [Symbol.asyncDispose]() {
        await snapshots[Symbol.asyncDispose]()
        await storage?.close()
      },
    }
  } catch (error) {
    await storage?.close()
    throw error
  }
}

async function listFolders(root: string): Promise<readonly HeldVolume[]> {
  if (!existsSync(root)) return []
  const names = await Promise.all(
    (await readdir(root)).map(async (org) => (await readdir(join(root, org))).map((volume) => `${org}/${volume}`)),
  )
  return names.flat().flatMap((name) => (parseVolumeSubpath(name) === null ? [] : [{ name, dir: join(root, name) }]))
}
