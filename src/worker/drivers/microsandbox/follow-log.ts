import { open, readdir, stat, type FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import { interruptibleSleep, type Clock } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'
import type { LogStream, LogWriter } from '../../logs/logs.ts'
import { readJson, writeWhole } from './vm-records.ts'

/** What the runtime captured of one sandbox, on its way into our own log. */
export type LogFollower = {
  /** Reads to the end of what is there, ends every stream, and lets go. */
  close(): Promise<void>
}

export type Following = {
  /** The folder of the runtime's logs of the sandbox. */
  readonly folder: string
  /** Where the position is kept, so that a restarted worker copies nothing twice. */
  readonly positionFile: string
  readonly writer: LogWriter
  readonly clock: Clock
  readonly log: Log
}

/** A file of the captured output, which rotation renames, and how much of it was copied. */
type Position = { readonly inode: number; readonly offset: number }

const CAPTURED = 'exec.log'
/** Measured against a person who watches: a line is on its way within this time. */
const POLL_MS = 200
const PIECE_BYTES = 256 * 1024
/** The longest line that is taken; the runtime writes one for each piece of output, at most 4 MiB of it (agent protocol, section 3). */
const LINE_LIMIT_BYTES = 32 * 1024 * 1024
/** Sessions whose unfinished lines are held at once. */
const STREAMS_LIMIT = 64

/**
 * Follows the runtime's captured output: a JSON text a line, `{t, s, d, id}`, in a file that is renamed when it is full
 * (exec_log.rs and logging.rs, 0.6.14). Failures are logged and tried again. Without a position, only what comes is copied.
 */
export function followLog({ folder, positionFile, writer, clock, log }: Following): LogFollower {
  const closing = new AbortController()
  const streams = makeStreams(writer)
  const copy = async (): Promise<void> => {
    const from = (await readJson<Position>(positionFile)) ?? (await begin(folder))
    if (from === null) return
    const next = await copyFrom(folder, from, (line) => take(line, streams))
    if (next.inode !== from.inode || next.offset !== from.offset) await writeWhole(positionFile, next)
  }
  const guarded = async (): Promise<void> => {
    try {
      await copy()
    } catch (error) {
      log.warn({ err: error, folder }, "copying a sandbox's output failed")
    }
  }
  const run = async (): Promise<void> => {
    while (!closing.signal.aborted) {
      await guarded()
      await interruptibleSleep(clock, POLL_MS, closing.signal)
    }
    await guarded()
    streams.end()
  }
  const running = run()
  return {
    async close() {
      closing.abort()
      await running
    },
  }
}

/** Marks the end of what an earlier run captured: what comes after it is to be copied. A file that is not there begins at 0. */
export async function markLogEnd(folder: string, positionFile: string): Promise<void> {
  const found = await statOrNull(join(folder, CAPTURED))
  if (found !== null) await writeWhole(positionFile, { inode: found.ino, offset: found.size } satisfies Position)
}

async function begin(folder: string): Promise<Position | null> {
  const found = await statOrNull(join(folder, CAPTURED))
  return found === null ? null : { inode: found.ino, offset: 0 }
}

async function copyFrom(folder: string, from: Position, onLine: (line: string) => void): Promise<Position> {
  const current = await statOrNull(join(folder, CAPTURED))
  if (current === null) return from
  if (current.ino === from.inode)
    return { ...from, offset: await readLines(join(folder, CAPTURED), from.offset, onLine) }
  // It was renamed meanwhile: first the rest of it, then those that came between, then the current one.
  const older = await rotated(folder)
  const at = older.findIndex(({ inode }) => inode === from.inode)
  for (const { path, inode } of at < 0 ? [] : older.slice(at))
    await readLines(path, inode === from.inode ? from.offset : 0, onLine)
  return { inode: current.ino, offset: await readLines(join(folder, CAPTURED), 0, onLine) }
}

/** Files that were renamed, the oldest first: `exec.log.1` is the newest of them. */
async function rotated(folder: string): Promise<readonly { readonly path: string; readonly inode: number }[]> {
  const numbers = (await readdir(folder)).flatMap((name) => {
    const number = /^exec\.log\.(\d+)$/.exec(name)?.[1]
    return number === undefined ? [] : [Number(number)]
  })
  const files = await Promise.all(
    numbers
      .toSorted((a, b) => b - a)
      .map(async (number) => {
        const path = join(folder, `${CAPTURED}.${String(number)}`)
        const found = await statOrNull(path)
        return found === null ? null : { path, inode: found.ino }
      }),
  )
  return files.filter((file) => file !== null)
}

/** Reads whole lines from an offset and answers where the next one begins. */
async function readLines(path: string, offset: number, onLine: (line: string) => void): Promise<number> {
  await using handle = await open(path, 'r')
  let at = offset
  let held = Buffer.alloc(0)
  for (;;) {
    const piece = await readPiece(handle, at + held.length)
    if (piece.length === 0) return at
    held = Buffer.concat([held, piece])
    let end = held.indexOf(0x0a)
    while (end >= 0) {
      onLine(held.toString('utf8', 0, end))
      held = held.subarray(end + 1)
      at += end + 1
      end = held.indexOf(0x0a)
    }
    if (held.length <= LINE_LIMIT_BYTES) continue
    at += held.length // no line of the runtime's
    held = Buffer.alloc(0)
  }
}

async function readPiece(handle: FileHandle, position: number): Promise<Buffer> {
  const { buffer, bytesRead } = await handle.read(Buffer.alloc(PIECE_BYTES), 0, PIECE_BYTES, position)
  return buffer.subarray(0, bytesRead)
}

type Entry = { readonly s: string; readonly d: string; readonly id: number }
type Streams = { of(entry: Entry): LogStream | null; end(): void }

/** The runtime's own words are left out: the worker has its own for what they say. */
function take(line: string, streams: Streams): void {
  const entry = parseEntry(line)
  if (entry !== null) streams.of(entry)?.write(Buffer.from(entry.d))
}

function parseEntry(line: string): Entry | null {
  try {
    const { s, d, id } = JSON.parse(line) as Readonly<Record<string, unknown>> // the runtime's, whatever it says
    return typeof s === 'string' && typeof d === 'string' ? { s, d, id: typeof id === 'number' ? id : 0 } : null
  } catch (error) {
    if (error instanceof SyntaxError) return null // cut short by a crash
    throw error
  }
}

/** One for each session and source, so that lines of two sessions don't mix. */
function makeStreams(writer: LogWriter): Streams {
  const streams = new Map<string, LogStream>()
  return {
    of({ s, id }) {
      if (s !== 'stdout' && s !== 'stderr' && s !== 'output') return null
      const key = `${s} ${String(id)}`
      const stream = streams.get(key) ?? writer.stream(s)
      streams.delete(key)
      streams.set(key, stream) // the last used is the last
      const [oldest] = streams
      if (streams.size > STREAMS_LIMIT && oldest !== undefined) {
        oldest[1].end()
        streams.delete(oldest[0])
      }
      return stream
    },
    end() {
      for (const stream of streams.values()) stream.end()
      streams.clear()
    },
  }
}

async function statOrNull(path: string): Promise<{ readonly ino: number; readonly size: number } | null> {
  try {
    return await stat(path)
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return null
    throw error
  }
}
