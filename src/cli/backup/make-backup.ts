import { existsSync } from 'node:fs'
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { systemRandom } from '../../lib/random.ts'
import { openDataFolder } from '../server/data-folder.ts'
import { mountDataFolder } from '../server/data-mount.ts'
import { microVmFolder } from '../worker/worker-storage.ts'
import { VERSION } from '../version.ts'
import { makeArchiveTaker } from './archive-taker.ts'
import type { ArchiveSource } from './archives.ts'
import { lockBackups, lockUnlessUsed } from '../worker/backup-leftovers.ts'
import {
  FORMAT,
  formatManifest,
  streamsOf,
  type ArchiveKind,
  type Manifest,
  type Stored,
  type StoredArchive,
} from './manifest.ts'
import { openWriter } from './open-repository.ts'
import { TargetError } from './repository.ts'
import { storeStream, type Tally } from './stored-streams.ts'
import { openEmbeddedSnapshot, takeDatabase } from './take-database.ts'
import { holdDisks, snapshotsFolder, takeDisk } from './take-disks.ts'
import { takeImages } from './take-images.ts'
import { holdVolumes } from './take-volumes.ts'

export type BackupInput = {
  readonly config: Config
  /** A folder, or a file whose name ends with `.tar`. */
  readonly target: string
  readonly withImages: boolean
  readonly log: Log
  /** Called with what is read now. */
  readonly onProgress: (text: string) => void
  /** Ends the backup. What it holds of disks and volumes is released. */
  readonly signal: AbortSignal
}

/** A backup that was made, what it read and wrote, and what failed. */
export type MadeBackup = {
  readonly name: string
  readonly manifest: Manifest
  readonly tally: Readonly<Tally>
  readonly failures: readonly string[]
}

/** Files without which no secret in the database can be read and no worker is known. */
const KEYS = ['sealing.key', 'worker.credential', 'worker.json', 'tls-certificate.pem'] as const

/**
 * Makes a backup of everything in a data folder, whether or not a server runs. The database and all volumes are as they
 * were at one moment, within a second. Each disk is as it was at one moment later.
 */
export async function makeBackup(input: BackupInput): Promise<MadeBackup> {
  const { config: given, log, onProgress, signal } = input
  await using opened = new AsyncDisposableStack()
  const writer = opened.use(await openWriter(input.target))
  const tally: Tally = { readBytes: 0, newChunks: 0, writtenBytes: 0 }
  const store = (stream: AsyncIterable<Uint8Array>): Promise<Stored> =>
    storeStream(writer, tally, untilAborted(stream, signal))
  opened.use(await lockBackups(given.dataDir))
  const lock = lockUnlessUsed(given.dataDir) // so that no server starts meanwhile; null: one runs
  if (lock !== null) opened.use(lock)
  const folder = await openDataFolder(given.dataDir, systemRandom, given.secretKey)
  const config = { ...given, dataDir: opened.use(await mountDataFolder(folder)).path }
  const snapshot = config.databaseUrl === null ? await openEmbeddedSnapshot(config, log) : null
  if (snapshot !== null) opened.use(snapshot)
  const taken_at = (snapshot?.takenAt ?? systemClock.now()).toISOString()
  const volumes = opened.use(await holdVolumes(config, folder, { isInUse: lock === null, log }))
  signal.throwIfAborted()
  const disks = opened.use(await holdDisks(config))

  const failures: string[] = []
  const taker = makeArchiveTaker({ store, onFailure: (text) => failures.push(text), onProgress })
  if (snapshot !== null) onProgress('database')
  const database = snapshot === null ? null : await takeDatabase(snapshot, store)
  const archives: StoredArchive[] = []
  const takeWhole = async (kind: ArchiveKind, name: string, source: ArchiveSource): Promise<void> => {
    const archive = await taker.takeWhole(kind, name, source)
    if (archive !== null) archives.push(archive)
  }
  type FolderOptions = { readonly isChanging: boolean } & Pick<ArchiveSource, 'except'>
  const takeFolder = async (kind: ArchiveKind, name: string, options: FolderOptions): Promise<void> => {
    if (!existsSync(join(config.dataDir, name))) return
    archives.push(await taker.takeReadable(kind, name, { dir: config.dataDir, paths: [name], ...options }))
  }
  for (const name of KEYS)
    if (existsSync(join(config.dataDir, name))) await takeWhole('keys', name, { dir: config.dataDir, paths: [name] })
  const isChanging = volumes.poolBytes === null // snapshots don't change
  for (const { name, dir } of volumes.volumes)
    archives.push(await taker.takeReadable('volume', name, { dir, paths: ['.'], isChanging }))
  for (const id of disks.ids) {
    onProgress(`disk ${id}`)
    try {
      archives.push({ kind: 'disk', name: id, ...(await takeDisk({ dir: disks.dir, id }, store)) })
    } catch (error) {
      if (error instanceof TargetError || signal.aborted) throw error
      failures.push(`the disk of the sandbox ${id}: ${error instanceof Error ? error.message : String(error)}`)
    }
  }
  for (const id of await completeSnapshots(config))
    await takeWhole('snapshot', id, { dir: snapshotsFolder(config), paths: [id] })
  await takeFolder('logs', 'logs', { isChanging: true })
  if (lock !== null) await takeFolder('microvms', 'vm', { isChanging: false })
  // It names the owner of the Pods, by which a restored worker finds them again.
  const servedImages = input.withImages ? {} : { except: 'kubernetes/registry/images' }
  await takeFolder('kubernetes', 'kubernetes', { isChanging: true, ...servedImages })
  if (input.withImages) archives.push(...(await takeImages(config, taker)))
  const manifest: Manifest = {
    format: FORMAT,
    taken_at,
    release: VERSION,
    data_dir: given.dataDir,
    database,
    archives,
    volume_pool_bytes: volumes.poolBytes,
    left_out: [...failures, ...leftOutOf(input, { isInUse: lock === null }), ...volumes.leftOut],
  }
  onProgress('writing everything to the disk')
  signal.throwIfAborted()
  const { name, text } = formatManifest(manifest)
  await writer.commit(name, text, new Set(streamsOf(manifest).flatMap(({ chunks }) => chunks)))
  return { name, manifest, tally, failures }
}

/** The ids of the snapshots of disks. One that is being made has another name. */
async function completeSnapshots(config: Config): Promise<readonly string[]> {
  const dir = snapshotsFolder(config)
  return existsSync(dir) ? (await readdir(dir)).filter((name) => !name.includes('.')) : []
}

/** Describes what a backup leaves out by its nature. */
function leftOutOf({ config, withImages }: BackupInput, { isInUse }: { readonly isInUse: boolean }): readonly string[] {
  return [
    ...(config.databaseUrl === null ? [] : ['the database of DATABASE_URL: use pg_dump and pg_restore']),
    ...(config.secretKey === null ? [] : ['SANDYARD_SECRET_KEY: keep it, because no password can be read without it']),
    ...(isInUse && existsSync(microVmFolder(config))
      ? ['microVMs, whose disks can only be read while nothing runs: back up after `sandyard down`']
      : []),
    ...(withImages ? [] : ['images: a sandbox whose image is gone from its registry will not start']),
  ]
}

/** Ends a stream with an error when a signal aborts. */
async function* untilAborted<T>(stream: AsyncIterable<T>, signal: AbortSignal): AsyncGenerator<T> {
  for await (const part of stream) {
    signal.throwIfAborted()
    yield part
  }
}
