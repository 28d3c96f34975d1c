import { createHash } from 'node:crypto'
import { mkdir, open, readFile, readdir, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { isFileNotFound } from '../../lib/files.ts'
import { Type, type Static } from 'typebox'
import { Value } from 'typebox/value'
import { DIGEST_SHAPE } from './manifest.ts'
import type { TempFolders } from './temp-folders.ts'

const NullableStrings = Type.Union([Type.Array(Type.String()), Type.Null()])
const NullableString = Type.Union([Type.String(), Type.Null()])
const Digest = Type.String({ pattern: DIGEST_SHAPE })
const ImageRecordSchema = Type.Object({
  /** The reference in canonical form. */
  reference: Type.String(),
  /**
   * The digest of this platform's manifest, or of the configuration when the image came from an archive without
   * manifests.
   */
  digest: Digest,
  /** The digest that the reference resolved to: the digest of the index if there is one, otherwise of the manifest. */
  resolved_digest: Digest,
  /**
   * How the store got the image. `credential` means that the registry asked for a password. Each later caller must then
   * prove access too.
   */
  origin: Type.Union([Type.Literal('loaded'), Type.Literal('anonymous'), Type.Literal('credential')]),
  stored_at: Type.String(),
  labels: Type.Record(Type.String(), Type.String()),
  config: Type.Object({
    env: Type.Array(Type.String()),
    entrypoint: NullableStrings,
    cmd: NullableStrings,
    workdir: NullableString,
    user: NullableString,
  }),
  /** The layers' diff_ids, the lowest first. */
  diff_ids: Type.Array(Digest),
})

/** The stored information about one reference. */
export type ImageRecord = Readonly<Static<typeof ImageRecordSchema>>

/** The records of all references, each in a small JSON file. Writes are atomic, even in a crash. */
interface ImageRecords {
  /** Reads a record. Null when there is no readable record. The image is then pulled again. */
  read(reference: string): Promise<ImageRecord | null>
  write(record: ImageRecord): Promise<void>
  /** Removes a record. A missing record is fine. */
  remove(reference: string): Promise<void>
  list(): Promise<readonly ImageRecord[]>
}

/** Opens the records in a folder. Creates the folder when it is missing. */
export async function openImageRecords(dir: string, temp: TempFolders): Promise<ImageRecords> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const pathOf = (reference: string): string =>
    join(dir, `${createHash('sha256').update(reference).digest('hex')}.json`)
  return {
    read: (reference) => readRecord(pathOf(reference)),
    async write(record) {
      const folder = await temp.create()
      try {
        const written = join(folder, 'record.json')
        const file = await open(written, 'wx', 0o600)
        try {
          await file.writeFile(`${JSON.stringify(record)}\n`)
          await file.sync()
        } finally {
          await file.close()
        }
        await rename(written, pathOf(record.reference))
        await syncFolder(dir)
      } finally {
        await temp.remove(folder)
      }
    },
    async remove(reference) {
      await rm(pathOf(reference), { force: true })
      await syncFolder(dir)
    },
    async list() {
      const names = (await readdir(dir)).filter((name) => name.endsWith('.json'))
      const records = await Promise.all(names.map((name) => readRecord(join(dir, name))))
      return records.filter((record) => record !== null)
    },
  }
}

/** Makes renames in a folder durable, so that they survive a power failure. */
export async function syncFolder(dir: string): Promise<void> {
  const folder = await open(dir, 'r')
  try {
    await folder.sync()
  } finally {
    await folder.close()
  }
}

async function readRecord(path: string): Promise<ImageRecord | null> {
  try {
    const value: unknown = JSON.parse(await readFile(path, 'utf8'))
    return Value.Check(ImageRecordSchema, value) ? value : null
  } catch (error) {
    if (error instanceof SyntaxError) return null
    if (isFileNotFound(error)) return null
    throw error
  }
}
