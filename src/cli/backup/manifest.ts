import { createHash } from 'node:crypto'
import type { AppliedMigration, Table } from '../../store/backup/dump-tables.ts'

/** A stream of bytes as a list of chunks, each named by the SHA-256 of its bytes. */
export type Stored = { readonly bytes: number; readonly chunks: readonly string[] }

/** The rows of a table in PostgreSQL's text format. */
export type StoredTable = Table & Stored & { readonly rows: number }

/** A tar archive of something in the data folder. */
export type StoredArchive = Stored & {
  readonly kind: ArchiveKind
  /** `<org>/<volume>` of a volume, the id of a sandbox of a disk, the id of a snapshot, else a word for people. */
  readonly name: string
  /** What the reader of a report should know about its state. Null: nothing. */
  readonly note: string | null
}

export const ARCHIVE_KINDS = ['keys', 'logs', 'images', 'volume', 'disk', 'snapshot', 'microvms', 'kubernetes'] as const
export type ArchiveKind = (typeof ARCHIVE_KINDS)[number]

/** What a backup consists of. Its file is written last: a backup without it doesn't exist. */
export type Manifest = {
  readonly format: typeof FORMAT
  /** The time of the state that the backup has, in UTC. */
  readonly taken_at: string
  /** The release that made the backup. */
  readonly release: string
  /** The data folder that was taken. */
  readonly data_dir: string
  readonly database: {
    readonly migrations: readonly AppliedMigration[]
    readonly tables: readonly StoredTable[]
  } | null
  readonly archives: readonly StoredArchive[]
  /** The size of the volume pool; null if volumes are plain folders, or if there are none. */
  readonly volume_pool_bytes: number | null
  /** What the installation has and the backup doesn't, in sentences for people. */
  readonly left_out: readonly string[]
}

export const FORMAT = 'sandyard backup 1'

/** Formats a manifest, and its file name, which contains the start of its hash. */
export function formatManifest(manifest: Manifest): { readonly name: string; readonly text: string } {
  const text = `${JSON.stringify(manifest, null, 1)}\n`
  return { name: `${timeInName(manifest.taken_at)}-${hashOf(text)}.json`, text }
}

/** Whether a backup is later than a time, by its file name alone, which has no fractions of a second. */
export function isLaterByName(name: string, at: Date): boolean {
  const [time = ''] = name.split('-')
  return /^\d{8}T\d{6}Z$/.test(time) && time > timeInName(at.toISOString())
}

/** Shortens an ISO time to the seconds, without separators: such texts sort by time. */
function timeInName(time: string): string {
  return time.replaceAll(/[-:]|\.\d+/g, '')
}

/** Parses a manifest. Throws if it is damaged, or if a later release wrote it. */
export function parseManifest(name: string, text: string): Manifest {
  if (!name.endsWith(`-${hashOf(text)}.json`)) throw new Error(`the backup ${name} is damaged: its hash differs`)
  const manifest = JSON.parse(text) as Manifest // the hash shows that `formatManifest` wrote it
  if ((manifest.format as string) !== FORMAT)
    throw new Error(`the backup ${name} has the format '${String(manifest.format)}': restore it with a later release`)
  return manifest
}

/** Every stream of a backup, with a name for people. */
export function streamsOf({ database, archives }: Manifest): readonly (Stored & { readonly label: string })[] {
  return [
    ...(database?.tables ?? []).map((table) => ({ ...table, label: `table ${table.name}` })),
    ...archives.map((archive) => ({ ...archive, label: `${archive.kind} ${archive.name}` })),
  ]
}

function hashOf(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, 16)
}
