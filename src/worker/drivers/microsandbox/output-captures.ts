import { type Clock, interruptibleSleep } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'
import type { RunId } from '../../../domain/ids.ts'
import type { SandboxLogs, LogStream, LogWriter } from '../../logs/logs.ts'
import { open, readdir, type FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import { isFileNotFound } from '../../../lib/is-missing.ts'
import { readJson, writeJsonAtomically } from '../../../lib/files.ts'

/** The captured output of all runs here that live, on its way into our own logs. */
export type OutputCaptures = {
  /** Follows a run's output; one that is followed already stays so. */
  follow(run: CapturedRun): void
  /** Copies what is still there of a run's output and lets go. */
  finish(run: RunId): Promise<void>
  /** Lets go of all; what comes later is copied by the next worker, from where this one was. */
  close(): Promise<void>
}

export type CapturedRun = {
  readonly run: RunId
  readonly sandbox: Parameters<SandboxLogs['writerOf']>[0]
  readonly folder: string
  readonly positionFile: string
}

/** Follows nothing yet. */
export function makeOutputCaptures(deps: {
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly clock: Clock
  readonly log: Log
}): OutputCaptures {
  const followers = new Map<RunId, ExecLogFollower>()
  return {
    follow({ run, sandbox, folder, positionFile }) {
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

/** What the runtime captured of one sandbox, on its way into our own log. */
export type ExecLogFollower = {
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

/** Before every file: none has this inode. */
const BEGINNING: Position = { inode: 0, offset: 0 }

const CAPTURED = 'exec.log'
/** For a person who watches: a line is on its way within this time. */
const POLL_MS = 200
const PIECE_BYTES = 256 * 1024
/** The longest line that is taken; the runtime writes one for each piece of output, at most 4 MiB of it (agent protocol, section 3). */
const LINE_LIMIT_BYTES = 32 * 1024 * 1024
/** Sessions whose unfinished lines are held at once. */
const STREAMS_LIMIT = 64

/**
 * Follows the runtime's captured output: a JSON text a line, `{t, s, d, id}`, in a file that is renamed when it is full
 * (exec_log.rs and logging.rs, 0.6.14). A failure is logged once, and
 * tried again. Without a position all that is there is copied.
 */
export function followExecLog({ folder, positionFile, writer, clock, log }: Following): ExecLogFollower {
  const closing = new AbortController()
  const streams = makeStreams(writer)
  let position: Position | null = null
  let isFailing = false
  const copy = async (): Promise<void> => {
    const from = position ?? (await readJson<Position>(positionFile)) ?? BEGINNING
    position = await copyFrom(folder, from, (line) => take(line, streams))
    if (position.inode !== from.inode || position.offset !== from.offset)
      await writeJsonAtomically(positionFile, position)
  }
  const guarded = async (): Promise<void> => {
    try {
      await copy()
      isFailing = false
    } catch (error) {
      if (!isFailing) log.warn({ err: error, folder }, "copying a sandbox's output failed")
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

/** Marks the end of what an earlier run captured: what comes after it is to be copied. A file that is not there begins at 0. */
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
    return handle === null ? null : { handle, inode: (await handle.stat()).ino } // whatever it is called by now
  }
  const current = await openFile(CAPTURED)
  if (current === null) return from
  if (current.inode === from.inode) return { ...from, offset: await readLines(current.handle, from.offset, onLine) }
  // It was renamed meanwhile: first the rest of it, then those that came between, then the current one.
  const older: OpenFile[] = []
  for (const name of await rotated(folder)) {
    const file = await openFile(name)
    if (file !== null && file.inode !== current.inode) older.push(file)
  }
  const at = older.findIndex(({ inode }) => inode === from.inode) // of one that is gone all others came behind
  for (const { handle, inode } of older.slice(Math.max(at, 0)))
    await readLines(handle, inode === from.inode ? from.offset : 0, onLine)
  return { inode: current.inode, offset: await readLines(current.handle, 0, onLine) }
}

type OpenFile = { readonly handle: FileHandle; readonly inode: number }

/** Files that were renamed, the oldest first: `exec.log.1` is the newest of them. */
async function rotated(folder: string): Promise<readonly string[]> {
  const numbers = (await readdir(folder)).flatMap((name) => {
    const number = /^exec\.log\.(\d+)$/.exec(name)?.[1]
    return number === undefined ? [] : [Number(number)]
  })
  return numbers.toSorted((a, b) => b - a).map((number) => `${CAPTURED}.${String(number)}`)
}

/** Reads whole lines from an offset and answers where the next one begins. */
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

async function openOrNull(path: string): Promise<FileHandle | null> {
  try {
    return await open(path, 'r')
  } catch (error) {
    if (isFileNotFound(error)) return null
    throw error
  }
}
