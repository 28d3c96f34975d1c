import { type FileHandle, open } from 'node:fs/promises'
import type { LogEntry, LogPosition, LogQuery } from '../../contract/streams/log-protocol.ts'
import { type Clock, waitAtMost } from '../../lib/clock.ts'
import { LOG_START, comparePositions, parseRecord, toEntry } from './log-record.ts'
import type { ReadableLog } from './sandbox-log.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import { nextTurn } from '../../lib/turns/next-turn.ts'
import type { Segment } from './log-folder.ts'

/** The longest single wait for a change of the log. It must be below 24 days, the maximum delay of a timer. */
const LONGEST_WAIT_MS = 3_600_000

/**
 * Reads the entries that match a query, oldest first, in constant memory. If the query follows the log, reading
 * continues with new entries until the last run has ended or `until` is reached. Throws the signal's reason on abort.
 */
export async function* readLog(
  log: ReadableLog,
  query: LogQuery,
  { clock, signal }: { readonly clock: Clock; readonly signal: AbortSignal },
): AsyncGenerator<LogEntry> {
  const accepts = makeFilter(query)
  const untilMs = query.until === null ? null : Date.parse(query.until)
  const isOver = (): boolean => !query.follows || !log.isLive || (untilMs !== null && clock.now().getTime() >= untilMs)
  await log.flush()
  let at = startPosition(log, query.after)
  if (query.tail !== null) {
    const range = { from: at, to: log.end }
    if (comparePositions(at, range.to) < 0) at = await findTail(log, range, { count: query.tail, accepts, signal })
  }
  for (;;) {
    signal.throwIfAborted()
    // The change, `isOver` and the end are read before the entries. Entries that are written meanwhile therefore count
    // as a change, and the reader doesn't stop too early.
    const change = log.nextChange()
    const isLast = isOver()
    const to = log.end
    for await (const entries of scanForward(log, { from: at, to }, signal)) {
      for (const entry of entries) if (accepts(entry)) yield entry
    }
    if (comparePositions(at, to) < 0) at = to
    if (isLast) return
    await waitFor(change, untilMs === null ? LONGEST_WAIT_MS : untilMs - clock.now().getTime(), { clock, signal })
  }
}

/**
 * Returns the position to start at. If `after` is beyond the end, it belongs to an earlier log that was deleted, so all
 * entries come after it.
 */
function startPosition({ end }: ReadableLog, after: LogPosition | null): LogPosition {
  return after === null || after.generation > end.generation ? LOG_START : after
}

function makeFilter({ sources, since, until }: LogQuery): (entry: LogEntry) => boolean {
  const wanted = new Set(sources)
  // Timestamps are compared as text. A caller's timestamp may have another number of digits or another time zone than
  // those of the entries.
  const asOurs = (text: string): string => new Date(text).toISOString()
  const sinceTs = since === null ? '' : asOurs(since)
  const untilTs = until === null ? null : asOurs(until)
  return ({ source, ts }) => wanted.has(source) && ts >= sinceTs && (untilTs === null || ts < untilTs)
}

async function waitFor(
  change: Promise<void>,
  limitMs: number,
  { clock, signal }: { readonly clock: Clock; readonly signal: AbortSignal },
): Promise<void> {
  await waitAtMost(clock, Math.min(LONGEST_WAIT_MS, Math.max(0, limitMs)), change, signal)
}

/** The size of one read. A record has at most about 100 KiB. An incomplete record is completed by the next read. */
const BLOCK_BYTES = 64 * 1024
/** 64 KiB of short entries take 6 ms, and 16 readers at once took turns of 100 ms (2026-11, 2 cores). */
const LARGE_BLOCK_BYTES = 8 * 1024
const LINE_FEED = 0x0a
const NOTHING = Buffer.alloc(0)

/** A range of a log, from a position up to another. */
type LogRange = { readonly from: LogPosition; readonly to: LogPosition }

/**
 * Yields the entries of a range, block by block. Skips files that are deleted meanwhile because of the size limit, and
 * records that are incomplete because of a crash.
 */
async function* scanForward(
  log: ReadableLog,
  { from, to }: LogRange,
  signal: AbortSignal,
): AsyncGenerator<readonly LogEntry[]> {
  let at = from
  for (;;) {
    signal.throwIfAborted()
    const segment = log.segments.find(
      ({ generation, sizeBytes }) => comparePositions(at, { generation, offset: sizeBytes }) < 0,
    )
    if (segment === undefined || comparePositions({ generation: segment.generation, offset: 0 }, to) >= 0) return
    const { generation } = segment
    const reach = byteRangeWithin(segment, { from: at, to })
    if (reach.end > reach.start) {
      await using file = await openIfThere(log.pathOf(generation))
      if (file !== null) {
        let rest: Buffer = NOTHING
        for (let offset = reach.start; offset < reach.end;) {
          signal.throwIfAborted()
          const block = await readInTurn(file, offset, Math.min(BLOCK_BYTES, reach.end - offset))
          if (block.length === 0) break
          const data = rest.length === 0 ? block : Buffer.concat([rest, block])
          const entries: LogEntry[] = []
          const dataOffset = offset - rest.length
          const whole = eachLine(data, (line, end) => {
            const record = parseRecord(line)
            if (record !== null) entries.push(toEntry(record, { generation, offset: dataOffset + end }))
          })
          if (entries.length > 0) yield entries
          rest = data.subarray(whole)
          offset += block.length
        }
      }
    }
    if (reach.end < segment.sizeBytes) return // the range ends here
    at = { generation, offset: segment.sizeBytes }
  }
}

/**
 * Finds the position of the `count`th last entry of a range that `accepts` matches. Returns the start of the range when
 * there are fewer entries.
 */
async function findTail(
  log: ReadableLog,
  { from, to }: LogRange,
  {
    count,
    accepts,
    signal,
  }: { readonly count: number; readonly accepts: (entry: LogEntry) => boolean; readonly signal: AbortSignal },
): Promise<LogPosition> {
  if (count === 0) return to
  let found = 0
  for (const segment of log.segments.toReversed()) {
    const { generation } = segment
    const reach = byteRangeWithin(segment, { from, to })
    if (reach.end <= reach.start) continue
    await using file = await openIfThere(log.pathOf(generation))
    if (file === null) return from
    let rest: Buffer = NOTHING
    for (let end = reach.end; end > reach.start;) {
      signal.throwIfAborted()
      const start = Math.max(reach.start, end - BLOCK_BYTES)
      const data = Buffer.concat([await readInTurn(file, start, end - start), rest])
      // A record that begins before this block is read with the block before it.
      const first = start === reach.start ? 0 : data.indexOf(LINE_FEED) + 1
      for (let behind = data.lastIndexOf(LINE_FEED) + 1; behind > first;) {
        const begin = Math.max(first, behind < 2 ? 0 : data.lastIndexOf(LINE_FEED, behind - 2) + 1)
        const record = parseRecord(data.toString('utf8', begin, behind))
        const position = { generation, offset: start + begin }
        if (record !== null && accepts(toEntry(record, position)) && ++found === count) return position
        behind = begin
      }
      rest = start === reach.start ? NOTHING : data.subarray(0, first === 0 ? data.length : first)
      end = start
    }
  }
  return from
}

/** Calls `take` with each line and the offset of its end. Returns the end of the last line. */
function eachLine(data: Buffer, take: (line: string, end: number) => void): number {
  let from = 0
  for (let feed = data.indexOf(LINE_FEED); feed !== -1; feed = data.indexOf(LINE_FEED, from)) {
    take(data.toString('utf8', from, feed), feed + 1)
    from = feed + 1
  }
  return from
}

/** Returns the part of a file that belongs to a range of the log. */
function byteRangeWithin(
  { generation, sizeBytes }: Segment,
  { from, to }: LogRange,
): { readonly start: number; readonly end: number } {
  if (generation < from.generation || generation > to.generation) return { start: 0, end: 0 }
  return {
    start: generation === from.generation ? from.offset : 0,
    end: generation === to.generation ? Math.min(to.offset, sizeBytes) : sizeBytes,
  }
}

/** Reads a block. A large one has a turn of the event loop for itself, because its entries are parsed in that turn. */
async function readInTurn(file: FileHandle, offset: number, length: number): Promise<Buffer> {
  const block = await readAt(file, offset, length)
  if (block.length >= LARGE_BLOCK_BYTES) await nextTurn()
  return block
}

async function readAt(file: FileHandle, offset: number, length: number): Promise<Buffer> {
  const { buffer, bytesRead } = await file.read(Buffer.allocUnsafe(length), 0, length, offset)
  return buffer.subarray(0, bytesRead)
}

async function openIfThere(path: string): Promise<FileHandle | null> {
  try {
    return await open(path, 'r')
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return null
    throw error
  }
}
