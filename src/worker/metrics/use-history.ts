import { closeSync, constants, openSync, readSync, writeSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { mergeUse, startOfStep, USE_LEVELS, type UseLevel, type UsePoint } from '../../domain/sandboxes/use-points.ts'
import { hasErrorCode } from '../../lib/error-code.ts'

/*
 * The file of a sandbox's use has a ring of rows for each level of `USE_LEVELS`. The place of a row follows from its time, so the
 * file has no state except its rows, and a row is replaced after the time that its level is kept. A reader ignores rows that are
 * older. The file has at most 412 KiB, and holes where the sandbox did not run.
 *
 * Decision 57 compares it with rows in PostgreSQL.
 */

/** A row is nine doubles in the machine's byte order: the members of a point. A NaN stands for null. */
const ROW_VALUES = 9
const ROW_BYTES = ROW_VALUES * 8

type Ring = UseLevel & { readonly rows: number; readonly offset: number }

const RINGS: readonly Ring[] = USE_LEVELS.map((level, index) => ({
  ...level,
  rows: rowsOf(level),
  offset: USE_LEVELS.slice(0, index).reduce((bytes, before) => bytes + rowsOf(before) * ROW_BYTES, 0),
}))

function rowsOf({ stepMs, keptMs }: UseLevel): number {
  return keptMs / stepMs
}

/** Writes the use of one sandbox. */
export type UseHistory = {
  /** Adds a point of a short interval. Points must be added in the order of time. */
  add(point: UsePoint): void
  /** Writes what was added so far, so that `readUsePoints` has all of it. */
  flush(): void
  /** Writes what was added, and closes the file. */
  close(): void
  /** Closes the file without writing what is not written yet. */
  drop(): void
}

/**
 * How many points are merged and written at once. One at a time takes 10 us of processor time, because after a second of other work
 * all code and data has to be fetched again. Ten at a time take 2 us each (2026-11). A killed worker loses them.
 */
const POINTS_AT_ONCE = 10

/**
 * Makes the history of a sandbox's use, which continues where an earlier process ended. Its file is opened when points are
 * written for the first time, so a run that ends before and is deleted makes none. A failure to open it is thrown then, and
 * loses these points.
 */
export function makeUseHistory(path: string): UseHistory {
  let opened: OpenedHistory | null = null
  let waiting: UsePoint[] = []
  const drain = (): void => {
    const [first] = waiting
    if (first === undefined) return
    const points = waiting
    waiting = []
    opened ??= openHistory(path, first.atMs)
    const { levels } = opened
    let hasNewMinute = false
    for (const [index, level] of levels.entries())
      for (const point of points) if (level.add(point) && index > 0) hasNewMinute = true
    levels[0]?.flush()
    if (hasNewMinute) for (const level of levels) level.flush() // a killed worker loses at most a minute of these
  }
  const flush = (): void => {
    drain()
    for (const level of opened?.levels ?? []) level.flush()
  }
  const drop = (): void => {
    if (opened !== null) closeSync(opened.file)
    opened = null
    waiting = []
  }
  return {
    add(point) {
      if (waiting.push(point) >= POINTS_AT_ONCE) drain()
    },
    flush,
    close() {
      try {
        flush()
      } finally {
        drop()
      }
    },
    drop,
  }
}

type OpenedHistory = { readonly file: number; readonly levels: readonly LevelWriter[] }

/** Opens the file, and reads the rows of each level that the point at `atMs` may continue. */
function openHistory(path: string, atMs: number): OpenedHistory {
  const file = openSync(path, constants.O_RDWR | constants.O_CREAT, 0o600)
  const row = new Float64Array(ROW_VALUES)
  const bytes = new Uint8Array(row.buffer)
  const read = (ring: Ring, rowMs: number): UsePoint | null => {
    if (readSync(file, bytes, 0, ROW_BYTES, placeOf(ring, rowMs)) < ROW_BYTES) return null
    return row[0] === rowMs ? toPoint(row) : null
  }
  try {
    const levels = RINGS.map((ring) => makeLevelWriter(file, ring, read(ring, startOfStep(atMs, ring.stepMs))))
    return { file, levels }
  } catch (error) {
    closeSync(file)
    throw error
  }
}

type LevelWriter = {
  /** Adds a point. Returns whether it began a new row. */
  add(point: UsePoint): boolean
  flush(): void
}

/** Collects the rows of one level, and writes neighbours together. `current` is the row that a later point may continue. */
function makeLevelWriter(file: number, ring: Ring, current: UsePoint | null): LevelWriter {
  const rows = new Float64Array(POINTS_AT_ONCE * ROW_VALUES)
  const bytes = new Uint8Array(rows.buffer)
  let last = current
  let count = 0
  let place = 0
  const put = (point: UsePoint, index: number): void => {
    fromPoint(rows.subarray(index * ROW_VALUES, (index + 1) * ROW_VALUES), point)
  }
  const flush = (): void => {
    if (count > 0) writeSync(file, bytes, 0, count * ROW_BYTES, place)
    count = 0
  }
  return {
    add(point) {
      const atMs = startOfStep(point.atMs, ring.stepMs)
      const continues = last?.atMs === atMs
      last = continues && last !== null ? mergeUse(atMs, last, point) : { ...point, atMs }
      const at = placeOf(ring, atMs)
      const index = (at - place) / ROW_BYTES
      // The row of the last point is replaced while it waits; otherwise a row follows the others, or begins anew.
      if (count === 0 || index < count - 1 || index > count || index >= POINTS_AT_ONCE) {
        flush()
        place = at
        count = 1
        put(last, 0)
      } else {
        count = index + 1
        put(last, index)
      }
      return !continues
    },
    flush,
  }
}

function placeOf({ offset, rows, stepMs }: Ring, atMs: number): number {
  return offset + ((atMs / stepMs) % rows) * ROW_BYTES
}

function fromPoint(row: Float64Array, point: UsePoint): void {
  row[0] = point.atMs
  row[1] = point.coveredMs
  row[2] = point.cpuMs
  row[3] = point.memoryBytes
  row[4] = point.memoryMaxBytes
  row[5] = point.processes ?? NaN
  row[6] = point.diskBytes ?? NaN
  row[7] = point.receivedBytes ?? NaN
  row[8] = point.sentBytes ?? NaN
}

function toPoint(row: Float64Array): UsePoint {
  const value = (index: number): number => row[index] ?? 0
  const orNull = (index: number): number | null => (Number.isNaN(value(index)) ? null : value(index))
  return {
    atMs: value(0),
    coveredMs: value(1),
    cpuMs: value(2),
    memoryBytes: value(3),
    memoryMaxBytes: value(4),
    processes: orNull(5),
    diskBytes: orNull(6),
    receivedBytes: orNull(7),
    sentBytes: orNull(8),
  }
}

/**
 * Reads the points of one level that begin in a range, in the order of time. A missing file has none. Points that are not flushed
 * are missing.
 */
export async function readUsePoints(
  path: string,
  level: UseLevel,
  { sinceMs, untilMs }: { readonly sinceMs: number; readonly untilMs: number },
): Promise<readonly UsePoint[]> {
  const ring = RINGS.find(({ stepMs }) => stepMs === level.stepMs)
  if (ring === undefined) throw new Error(`no points are kept for ${String(level.stepMs)} ms`)
  const rows = await readRows(path, ring)
  const points: UsePoint[] = []
  for (let first = 0; first + ROW_VALUES <= rows.length; first += ROW_VALUES) {
    const point = toPoint(rows.subarray(first, first + ROW_VALUES))
    if (point.atMs > 0 && point.atMs >= sinceMs && point.atMs < untilMs) points.push(point)
  }
  return points.toSorted((a, b) => a.atMs - b.atMs)
}

async function readRows(path: string, { offset, rows }: Ring): Promise<Float64Array> {
  try {
    await using file = await open(path, 'r')
    const bytes = new Uint8Array(rows * ROW_BYTES)
    const { bytesRead } = await file.read(bytes, 0, bytes.length, offset)
    return new Float64Array(bytes.buffer, 0, Math.floor(bytesRead / ROW_BYTES) * ROW_VALUES)
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return new Float64Array()
    throw error
  }
}
