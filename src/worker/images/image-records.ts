import { createHash } from 'node:crypto'
import { mkdir, open, readdir, rename, rm, utimes } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import { nullIfGone, readFileSyncOrNull, statOrNull, syncPath } from '../../lib/files.ts'
import { Type, type Static } from 'typebox'
import { Value } from 'typebox/value'
import type { ImageConfig } from './image.ts'
import { DIGEST_SHAPE } from './manifest.ts'
import type { TempFolders } from './temp-folders.ts'

const NullableStrings = Type.Union([Type.Array(Type.String()), Type.Null()])
const NullableString = Type.Union([Type.String(), Type.Null()])
const Digest = Type.String({ pattern: DIGEST_SHAPE })
const ImageRecordSchema = Type.Object({
  /** The reference in canonical form. */
  reference: Type.String(),
  /**
   * The digest of this platform's manifest. If the image came from an archive without manifests, the digest of its
   * configuration.
   */
  digest: Digest,
  /** The digest that the reference resolved to: the digest of the index if there is one, otherwise of the manifest. */
  resolved_digest: Digest,
  /**
   * How the store got the image. `credential` means that the registry required a credential. Each later caller must
   * then prove with its own credential that it has access.
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

/** What the store knows about one reference: its image and where that came from. */
export type ImageRecord = Readonly<Static<typeof ImageRecordSchema>>

/** The records of all references, each in a small JSON file. Writes are atomic, even in a crash. */
export interface ImageRecords {
  /** Reads a record. Null when there is no readable record. The image is then pulled again. */
  read(reference: string): ImageRecord | null
  write(record: ImageRecord): Promise<void>
  /** Removes a record. A missing record is fine. */
  remove(reference: string): Promise<void>
  list(): Promise<readonly ImageRecord[]>
  /** Lists the records with the time of their last use, the least recently used first. */
  listByUse(): Promise<readonly { readonly record: ImageRecord; readonly usedMs: number }[]>
  /** Notes that an image is used now. Exact to `TOUCH_INTERVAL_MS`. A missing record is fine. */
  touch(reference: string): Promise<void>
}

/** Opens the records in a folder. Creates the folder when it is missing. */
export async function openImageRecords(
  dir: string,
  { temp, clock }: { readonly temp: TempFolders; readonly clock: Clock },
): Promise<ImageRecords> {
  const touchedMs = new Map<string, number>()
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const pathOf = (reference: string): string =>
    join(dir, `${createHash('sha256').update(reference).digest('hex')}.json`)
  async function list(): Promise<readonly ImageRecord[]> {
    const names = (await readdir(dir)).filter((name) => name.endsWith('.json'))
    const records = names.map((name) => readRecord(join(dir, name)))
    return records.filter((record) => record !== null)
  }

  return {
    list,
    read: (reference) => readRecord(pathOf(reference)),
    async write(record) {
      await temp.use(async (folder) => {
        const written = join(folder, 'record.json')
        const file = await open(written, 'wx', 0o600)
        try {
          await file.writeFile(`${JSON.stringify(record)}\n`)
          await file.utimes(clock.now(), clock.now())
          await file.sync()
        } finally {
          await file.close()
        }
        await rename(written, pathOf(record.reference))
        await syncPath(dir)
      })
    },
    async remove(reference) {
      touchedMs.delete(reference)
      await rm(pathOf(reference), { force: true })
      await syncPath(dir)
    },
    async touch(reference) {
      const nowMs = clock.monotonicMs()
      if (nowMs - (touchedMs.get(reference) ?? Number.NEGATIVE_INFINITY) < TOUCH_INTERVAL_MS) return
      touchedMs.set(reference, nowMs)
      await utimes(pathOf(reference), clock.now(), clock.now()).catch(nullIfGone)
    },
    async listByUse() {
      const used = await Promise.all(
        (await list()).map(async (record) => {
          const found = await statOrNull(pathOf(record.reference))
          return { record, usedMs: found?.mtimeMs ?? 0 }
        }),
      )
      return used.sort((a, b) => a.usedMs - b.usedMs)
    },
  }
}

/** How often the time of an image's last use is written. The file of its record carries it as its modification time. */
const TOUCH_INTERVAL_MS = 60_000

function readRecord(path: string): ImageRecord | null {
  const text = readFileSyncOrNull(path)
  if (text === null) return null
  try {
    const value: unknown = JSON.parse(text)
    return Value.Check(ImageRecordSchema, value) ? value : null
  } catch (error) {
    if (error instanceof SyntaxError) return null
    throw error
  }
}

/** Copies an image's configuration for its record. */
export function toRecordConfig(config: ImageConfig): ImageRecord['config'] {
  const { env, entrypoint, cmd, workdir, user } = config
  return { env: [...env], entrypoint: entrypoint && [...entrypoint], cmd: cmd && [...cmd], workdir, user }
}
