import { constants } from 'node:fs'
import { mkdir, open, readdir, stat, unlink, type FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrorCode } from '../../lib/error-code.ts'
import type { Clock } from '../../lib/clock.ts'

/**
 * The files of one sandbox's log, `<generation>.ndjson`. Whole records are appended, and each process of the worker
 * starts a new file. After a crash, therefore, only the end of a file can be incomplete.
 */
export type LogFolder = {
  /** The files, oldest first. `sizeBytes` counts only completely written records. */
  readonly segments: readonly Segment[]
  pathOf(generation: number): string
  /**
   * Writes records. Starts new files and deletes the oldest files, as the limit requires. Rejects when some records
   * were not written.
   */
  append(records: readonly string[]): Promise<void>
  /** Closes the current file. The next record reopens it. */
  closeFile(): Promise<void>
}

export type Segment = { readonly generation: number; readonly sizeBytes: number }

/**
 * How many files a log has when it reaches its size limit. Then the oldest file is deleted as a whole, so at least
 * three quarters of the limit stay.
 */
const SEGMENTS_PER_LIMIT = 4
/** The maximum number of files in a log. Each process of the worker starts a new file, even for few records. */
const MAX_SEGMENTS = 64
/** The maximum number of bytes in one write. */
const MAX_WRITE_BYTES = 256 * 1024

/** Opens the folder of a log. The first record creates the folder. */
export async function openLogFolder(
  path: string,
  { limitBytes, clock }: { readonly limitBytes: number; readonly clock: Pick<Clock, 'now'> },
): Promise<LogFolder> {
  const segmentBytes = limitBytes / SEGMENTS_PER_LIMIT
  let segments = await listSegments(path)
  let current: { readonly generation: number; readonly file: FileHandle | null; readonly sizeBytes: number } | null =
    null

  const pathOf = (generation: number): string => join(path, `${String(generation)}.ndjson`)

  /**
   * Starts a new file. Its generation is at least the number of seconds since 1970, so generations never repeat, even
   * after all files were deleted.
   */
  const startFile = async (): Promise<void> => {
    await closeFile()
    await mkdir(path, { recursive: true, mode: 0o700 })
    await deleteOldest()
    const generation = Math.max((segments.at(-1)?.generation ?? 0) + 1, Math.floor(clock.now().getTime() / 1000))
    current = { generation, file: await open(pathOf(generation), 'ax', 0o600), sizeBytes: 0 }
    segments = [...segments, { generation, sizeBytes: 0 }]
  }
  const deleteOldest = async (): Promise<void> => {
    const isTooMuch = (): boolean => segments.length >= MAX_SEGMENTS || sizeOf(segments) + segmentBytes > limitBytes
    for (let [oldest] = segments; oldest !== undefined && isTooMuch(); [oldest] = segments) {
      segments = segments.slice(1)
      await unlinkIfThere(pathOf(oldest.generation))
    }
  }
  const write = async (data: Buffer): Promise<void> => {
    if (current === null || (current.sizeBytes > 0 && current.sizeBytes + data.length > segmentBytes)) await startFile()
    if (current === null) throw new Error('a log file was not opened')
    const { generation, sizeBytes } = current
    const file = current.file ?? (await openAgain(generation))
    current = { generation, file, sizeBytes }
    try {
      await writeWhole(file, data)
    } catch (error) {
      await undoPartialWrite(file, sizeBytes)
      throw error
    }
    current = { generation, file, sizeBytes: sizeBytes + data.length }
    segments = [...segments.slice(0, -1), { generation, sizeBytes: current.sizeBytes }]
  }
  /** Reopens a file for appending. If that fails, the file stays unchanged, and the next record starts a new file. */
  const openAgain = async (generation: number): Promise<FileHandle> => {
    try {
      return await open(pathOf(generation), constants.O_WRONLY | constants.O_APPEND)
    } catch (error) {
      current = null
      throw error
    }
  }
  /** Removes the incomplete records of a failed write. If that fails too, no more records are written to this file. */
  const undoPartialWrite = async (file: FileHandle, sizeBytes: number): Promise<void> => {
    try {
      await file.truncate(sizeBytes)
    } catch {
      await closeFile()
      current = null
    }
  }
  const closeFile = async (): Promise<void> => {
    const file = current?.file ?? null
    if (current === null || file === null) return
    current = { ...current, file: null }
    await file.close()
  }

  return {
    get segments() {
      return segments
    },
    pathOf,
    async append(records) {
      for (const data of batchRecords(records, Math.min(segmentBytes, MAX_WRITE_BYTES))) await write(data)
    },
    closeFile,
  }
}

/** Joins records into batches, each up to the size of one write. */
function* batchRecords(records: readonly string[], limitBytes: number): Generator<Buffer> {
  let batch: string[] = []
  let bytes = 0
  for (const record of records) {
    const size = Buffer.byteLength(record)
    if (bytes > 0 && bytes + size > limitBytes) {
      yield Buffer.from(batch.join(''))
      batch = []
      bytes = 0
    }
    batch.push(record)
    bytes += size
  }
  if (bytes > 0) yield Buffer.from(batch.join(''))
}

async function writeWhole(file: FileHandle, data: Buffer): Promise<void> {
  for (let written = 0; written < data.length;) {
    const { bytesWritten } = await file.write(data, written)
    written += bytesWritten
  }
}

async function listSegments(path: string): Promise<readonly Segment[]> {
  const generations = (await namesIn(path)).flatMap((name) => {
    const match = /^(\d{1,15})\.ndjson$/.exec(name)
    return match === null ? [] : [Number(match[1])]
  })
  return await Promise.all(
    generations
      .toSorted((a, b) => a - b)
      .map(async (generation) => ({
        generation,
        sizeBytes: (await stat(join(path, `${String(generation)}.ndjson`))).size,
      })),
  )
}

async function namesIn(path: string): Promise<readonly string[]> {
  try {
    return await readdir(path)
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return []
    throw error
  }
}

async function unlinkIfThere(path: string): Promise<void> {
  try {
    await unlink(path)
  } catch (error) {
    if (!hasErrorCode(error, 'ENOENT')) throw error
  }
}

function sizeOf(segments: readonly Segment[]): number {
  return segments.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0)
}
