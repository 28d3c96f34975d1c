import { mkdirSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { DataFolderInUse, lockDataFolder } from '../../store/embedded/data-lock.ts'
import { volumePoolMountPoint } from '../../worker/volumes/volume-pool.ts'
import { deleteVolumeSnapshots } from '../../worker/volumes/volume-snapshots.ts'
import type { DataFolder } from '../server/data-folder.ts'
import { volumesKey } from './worker-storage.ts'

// A backup holds data that sandboxes delete meanwhile: disks by hard links, volumes by snapshots. What a killed backup leaves would
// keep that data for good. Whoever holds the lock of backups owns all of it.

/** How often, and how long apart, a backup tries the lock. A worker that starts holds it while it deletes. */
const LOCK_TRIES = 200
const LOCK_PAUSE_MS = 50

/** The folder of the hard links to disks within the data folder. */
export function diskLinksFolder(config: Pick<Config, 'dataDir'>): string {
  return join(config.dataDir, 'backup-links')
}

/** Locks a folder. Null: another process has locked it. */
export function lockUnlessUsed(dir: string): Disposable | null {
  try {
    return lockDataFolder(dir)
  } catch (error) {
    if (error instanceof DataFolderInUse) return null
    throw error
  }
}

/** Locks the backups of a data folder, so that nobody deletes what this one holds. Rejects if another backup runs. */
export async function lockBackups(dataDir: string): Promise<Disposable> {
  for (let tries = 1; tries <= LOCK_TRIES; tries++) {
    const lock = tryLock(dataDir)
    if (lock !== null) return lock
    await systemClock.sleep(LOCK_PAUSE_MS)
  }
  throw new Error(`another process makes a backup of ${dataDir}: wait until it ends`)
}

/**
 * Deletes what killed backups left in a data folder, whose volume storage must be open. Does nothing while a backup runs. Failures
 * are logged, because a worker works without it, and the next backup deletes it too.
 */
export async function removeLeftovers(
  config: Config,
  { folder, log }: { readonly folder: Pick<DataFolder, 'namePrefix'>; readonly log: Log },
): Promise<void> {
  try {
    using lock = tryLock(config.dataDir)
    if (lock === null) return
    await rm(diskLinksFolder(config), { recursive: true, force: true })
    await deleteVolumeSnapshots(volumePoolMountPoint(volumesKey(folder))) // does nothing without a pool
  } catch (error) {
    log.warn({ error }, 'what a killed backup left could not be deleted')
  }
}

function tryLock(dataDir: string): Disposable | null {
  const dir = join(dataDir, 'backup')
  mkdirSync(dir, { recursive: true, mode: 0o700 })
  return lockUnlessUsed(dir)
}
