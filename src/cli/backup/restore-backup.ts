import { chmod, mkdir, readdir, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { asId, type OrgId, type VolumeId } from '../../domain/ids.ts'
import type { Log } from '../../lib/log.ts'
import { systemRandom } from '../../lib/random.ts'
import { makeFolders } from '../../lib/files.ts'
import { runCommand } from '../../lib/run-command.ts'
import { lockDataFolder } from '../../store/embedded/data-lock.ts'
import { fillDataFolder, INCOMPLETE_RESTORE, type DataFolder } from '../server/data-folder.ts'
import { mountDataFolder } from '../server/data-mount.ts'
import { openVolumes, imagesFolder } from '../worker/worker-storage.ts'
import { writeArchive } from './archives.ts'
import { streamsOf, type Manifest, type StoredArchive } from './manifest.ts'
import { chunkPath, type Repository } from './repository.ts'
import { requireKnownMigrations, restoreDatabase } from './restore-database.ts'
import { readStored } from './stored-streams.ts'
import { disksFolder, snapshotsFolder } from './take-disks.ts'

export type RestoreInput = {
  /** Names the data folder to create. */
  readonly config: Config
  readonly repository: Repository
  readonly manifest: Manifest
  readonly log: Log
  readonly onProgress: (text: string) => void
}

/**
 * Restores a backup into a new data folder. Checks first what can be checked. If it fails later, the folder stays marked as
 * incomplete, and no server starts with it. Resolves with how many runs were open and are ended.
 */
export async function restoreBackup(input: RestoreInput): Promise<number> {
  const { config, manifest, repository } = input
  const { dataDir } = config
  await requireKnownMigrations(manifest)
  const missing = streamsOf(manifest).find(({ chunks }) => chunks.some((chunk) => !repository.has(chunk)))
  if (missing !== undefined) {
    const chunk = missing.chunks.find((one) => !repository.has(one)) ?? ''
    throw new Error(`the backup is damaged: ${missing.label} needs ${chunkPath(chunk)}, which is missing`)
  }
  await createEmptyFolder(dataDir)
  using _lock = lockDataFolder(dataDir)
  await writeFile(join(dataDir, INCOMPLETE_RESTORE), '', { flag: 'wx', mode: 0o600 })
  for (const archive of manifest.archives) {
    const dir = folderOf(archive, config)
    if (dir === null) continue
    input.onProgress(`${archive.kind} ${archive.name}`)
    await mkdir(dir, { recursive: true, mode: 0o700 })
    await writeArchive(readStored(repository, archive), dir)
  }
  input.onProgress('database')
  const folder = await fillDataFolder(dataDir, systemRandom, config.secretKey) // with an id of its own
  const ended = await restoreMounted(input, folder)
  await runCommand('sync', ['-f', dataDir], { timeoutMs: SYNC_TIMEOUT_MS })
  await rm(join(dataDir, INCOMPLETE_RESTORE))
  return ended
}

/** Restores what needs the data folder at the path at which servers use it. */
async function restoreMounted(input: RestoreInput, folder: DataFolder): Promise<number> {
  await using mounted = await mountDataFolder(folder)
  const config = { ...input.config, dataDir: mounted.path }
  const ended = await restoreDatabase({ ...input, config })
  await restoreVolumes({ ...input, config }, folder)
  return ended
}

const SYNC_TIMEOUT_MS = 600_000

/** Where the paths in an archive begin. Null: volumes have storage of their own. */
function folderOf({ kind }: StoredArchive, config: Config): string | null {
  if (kind === 'volume') return null
  if (kind === 'disk') return disksFolder(config)
  if (kind === 'snapshot') return snapshotsFolder(config)
  return kind === 'images' ? imagesFolder(config) : config.dataDir
}

async function createEmptyFolder(dir: string): Promise<void> {
  await makeFolders(dir)
  const found = (await readdir(dir)).filter((name) => name !== 'lost+found')
  if (found.length > 0) throw new Error(`${dir} is not empty: name a new folder by --data-dir`)
  await chmod(dir, 0o711) // the database's user must be able to enter the folder
}

async function restoreVolumes(
  { config, manifest, repository, log, onProgress }: RestoreInput,
  folder: DataFolder,
): Promise<void> {
  const volumes = manifest.archives.filter(({ kind }) => kind === 'volume')
  if (volumes.length === 0) return
  const poolGib = manifest.volume_pool_bytes === null ? null : Math.ceil(manifest.volume_pool_bytes / 1024 ** 3)
  const storage = await openVolumes(
    { ...config, sharedVolumesDir: null, volumePoolGib: config.volumePoolGib ?? poolGib },
    folder,
    log,
  )
  try {
    for (const volume of volumes) {
      onProgress(`volume ${volume.name}`)
      const [org = '', id = ''] = volume.name.split('/')
      const key = { org_id: asId<OrgId>(org), volume_id: asId<VolumeId>(id) }
      // The server sets the caps when it starts.
      const dir = await storage.open({ ...key, capacity_bytes: null, org_capacity_bytes: null })
      await writeArchive(readStored(repository, volume), dir)
    }
  } finally {
    await storage.close()
  }
}
