import { type Clock, interruptibleSleep } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'
import type { RunId } from '../../../domain/ids.ts'
import type { SandboxLogs, LogStream, LogWriter } from '../../logs/logs.ts'
import { open, readdir, type FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrorCode } from '../../../lib/error-code.ts'
import { readJson, writeJsonAtomically } from '../../../lib/files.ts'

/** Copies the output that the runtime captured of all live runs into the sandboxes' logs. */
export type OutputCaptures = {
  /** Starts to copy a run's output. Does nothing if the run's output is already being copied. */
  begin(run: CapturedRun): void
  /** Copies the rest of a run's output and stops copying. */
  finish(run: RunId): Promise<void>
  /** Stops copying for all runs. The next worker process continues at the same position. */
  close(): Promise<void>
}

/** A run whose output is copied. */
export type CapturedRun = {
  readonly run: RunId
  readonly sandbox: Parameters<SandboxLogs['writerOf']>[0]
  readonly folder: string
  readonly positionFile: string
}

/** Creates the output captures of a worker. They copy no run's output yet. */
export function makeOutputCaptures(deps: {
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly clock: Clock
  readonly log: Log
}): OutputCaptures {
  const followers = new Map<RunId, ExecLogFollower>()
  return {
    begin({ run, sandbox, folder, positionFile }) {
      if (followers.has(run)) return
      followers.set(run, followExecLog({ folder, positionFile, writer: deps.logs.writerOf(sandbox), ...deps }))
    },
    async finish(run) {
      const follower = followers.get(run)
      followers.delete(run)
      await follower?.close()
    },
    async close() {
      const all = [...followers.values()]
      followers.clear()
      await Promise.all(all.map((follower) => follower.close()))
    },
  }
}

/** Copies the captured output of one sandbox into the sandbox's log. */
type ExecLogFollower = {
  /** Copies the remaining output, ends every stream, and closes the files. */
  close(): Promise<void>
}

type ExecLogInput = {
  /** The folder in which the runtime stores this sandbox's logs. */
  readonly folder: string
  /** The file that stores how much was copied. A restarted worker therefore copies nothing twice. */
  readonly positionFile: string
  readonly writer: LogWriter
  readonly clock: Clock
  readonly log: Log
}

/** A position in a file of captured output. The file is identified by its inode, because rotation renames it. */
type Position = { readonly inode: number; readonly offset: number }

/** The position before all files. No file has this inode. */
const BEGINNING: Position = { inode: 0, offset: 0 }

const CAPTURED = 'exec.log'
/** How often the file is checked for new lines. The interval is short because a person may be watching the log. */
const POLL_MS = 200
const PIECE_BYTES = 256 * 1024
/** The longest line that is copied. The runtime writes one line for each chunk of at most 4 MiB of output. */
const LINE_LIMIT_BYTES = 32 * 1024 * 1024
/** The maximum number of streams in memory at the same time. */
const STREAMS_LIMIT = 64

/**
 * Follows the output that the runtime captures. The runtime writes one JSON object `{t, s, d, id}` per line, and
 * renames the file when it is full (exec_log.rs and logging.rs, 0.6.14). Without a stored position, copying begins with
 * the oldest file. A failure is logged once, and the copy is tried again.
 */
export function followExecLog({ folder, positionFile, writer, clock, log }: ExecLogInput): ExecLogFollower {
  const closing = new AbortController()
  const streams = makeStreams(writer)
  let position: Position | null = null
  let isFailing = false
  const copy = async (): Promise<void> => {
    const from = position ?? (await readJson<Position>(positionFile)) ?? BEGINNING
    position = await copyFrom(folder, from, (line) => writeEntry(line, streams))
    if (position.inode !== from.inode || position.offset !== from.offset)
      await writeJsonAtomically(positionFile, position)
  }
  const guarded = async (): Promise<void> => {
    try {
      await copy()
      isFailing = false
    } catch (error) {
      if (!isFailing) log.warn({ error, folder }, "copying a sandbox's output failed")
      isFailing = true
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

/** Stores the end of the captured output as the position, so that the output of earlier runs is not copied. */
export async function skipExistingOutput(folder: string, positionFile: string): Promise<void> {
  await using handle = await openOrNull(join(folder, CAPTURED))
  if (handle === null) return
  const { ino: inode, size: offset } = await handle.stat()
  await writeJsonAtomically(positionFile, { inode, offset } satisfies Position)
}

async function copyFrom(folder: string, from: Position, onLine: (line: string) => void): Promise<Position> {
  await using opened = new AsyncDisposableStack()
  const openFile = async (name: string): Promise<OpenFile | null> => {
    const handle = opened.use(await openOrNull(join(folder, name)))
    return handle === null ? null : { handle, inode: (await handle.stat()).ino } // rotation may have renamed the file since it was opened
  }
  const current = await openFile(CAPTURED)
  if (current === null) return from
  if (current.inode === from.inode) return { ...from, offset: await readLines(current.handle, from.offset, onLine) }
  // The file was renamed. Copy the rest of it, then the newer renamed files, then the current file.
  const older: OpenFile[] = []
  for (const name of await rotated(folder)) {
    const file = await openFile(name)
    if (file !== null && file.inode !== current.inode) older.push(file)
  }
  const at = older.findIndex(({ inode }) => inode === from.inode) // -1: that file is deleted, all others are newer
  for (const { handle, inode } of older.slice(Math.max(at, 0)))
    await readLines(handle, inode === from.inode ? from.offset : 0, onLine)
  return { inode: current.inode, offset: await readLines(current.handle, 0, onLine) }
}

type OpenFile = { readonly handle: FileHandle; readonly inode: number }

/** Lists the renamed files, oldest first. `exec.log.1` is the newest of them. */
async function rotated(folder: string): Promise<readonly string[]> {
  const numbers = (await readdir(folder)).flatMap((name) => {
    const number = /^exec\.log\.(\d+)$/.exec(name)?.[1]
    return number === undefined ? [] : [Number(number)]
  })
  return numbers.toSorted((a, b) => b - a).map((number) => `${CAPTURED}.${String(number)}`)
}

/** Reads whole lines from an offset on, and returns the offset of the next line. */
async function readLines(handle: FileHandle, offset: number, onLine: (line: string) => void): Promise<number> {
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
    at += held.length // skips text that is too long to be a line of the runtime
    held = Buffer.alloc(0)
  }
}

async function readPiece(handle: FileHandle, position: number): Promise<Buffer> {
  const { buffer, bytesRead } = await handle.read(Buffer.alloc(PIECE_BYTES), 0, PIECE_BYTES, position)
  return buffer.subarray(0, bytesRead)
}

type Entry = { readonly s: string; readonly d: string; readonly id: number }
type Streams = { of(entry: Entry): LogStream | null; end(): void }

/** Writes the output that one line contains. Skips the runtime's own messages, because the worker logs its own. */
function writeEntry(line: string, streams: Streams): void {
  const entry = parseEntry(line)
  if (entry !== null) streams.of(entry)?.write(Buffer.from(entry.d))
}

function parseEntry(line: string): Entry | null {
  try {
    const { s, d, id } = JSON.parse(line) as Readonly<Record<string, unknown>> // each field is checked below
    return typeof s === 'string' && typeof d === 'string' ? { s, d, id: typeof id === 'number' ? id : 0 } : null
  } catch (error) {
    if (error instanceof SyntaxError) return null // truncated by a crash
    throw error
  }
}

/** Creates a separate stream for each session and source, so that the lines of two sessions don't mix. */
function makeStreams(writer: LogWriter): Streams {
  const streams = new Map<string, LogStream>()
  return {
    of({ s, id }) {
      if (s !== 'stdout' && s !== 'stderr' && s !== 'output') return null
      const key = `${s} ${String(id)}`
      const stream = streams.get(key) ?? writer.stream(s)
      streams.delete(key)
      streams.set(key, stream) // the map's first stream is the least recently used
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

async function openOrNull(path: string): Promise<FileHandle | null> {
  try {
    return await open(path, 'r')
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return null
    throw error
  }
}
