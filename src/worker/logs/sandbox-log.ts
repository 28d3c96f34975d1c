import type { LogPosition } from '../../contract/streams/log-protocol.ts'
import type { Clock } from '../../lib/clock.ts'
import { interruptibleSleep, NOTIFIED } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { removePath } from '../../lib/files.ts'
import { makeTokenBucket } from './token-bucket.ts'
import { openLogFolder, type LogFolder, type Segment } from './log-folder.ts'
import type { LogStream } from './logs.ts'
import { makeOutputStream, type OutputSource } from './output-stream.ts'
import { formatRecord } from './log-record.ts'

/**
 * One sandbox's log while it is in use. Writing never waits. Records are queued and written together after a short
 * pause.
 */
export type SandboxLog = ReadableLog & {
  openRun(): void
  closeRun(): void
  system(text: string): void
  stream(source: OutputSource): LogStream
  /** Ends unfinished lines, writes all pending records and closes the file. */
  close(): Promise<void>
  delete(): Promise<void>
  /**
   * Closes the log's current file if no record was written since the last call. Returns true if the log also has no
   * open run, stream, reader or pending record, so that the caller may forget it.
   */
  closeIfIdle(): Promise<boolean>
}

/** A log as a reader uses it. */
export type ReadableLog = {
  /** Writes all pending records. */
  flush(): Promise<void>
  readonly segments: readonly Segment[]
  /** The position after the last written record. */
  readonly end: LogPosition
  pathOf(generation: number): string
  /** Whether a run is open, or records of a run are still pending. */
  readonly isLive: boolean
  /** Resolves at the next change of the properties above. */
  nextChange(): Promise<void>
  /** Registers a reader, so that the log counts as in use. The returned function removes the reader. */
  addReader(): () => void
}

type SandboxLogDeps = {
  readonly path: string
  readonly limitBytes: number
  readonly clock: Clock
  readonly log: Log
}

/** The pause between two writes. */
const WRITE_PAUSE_MS = 20
/**
 * How long the first lines of a log may wait while they are only the worker's own and nobody reads. A sandbox that is deleted by
 * then makes no file. When ext4 makes an inode, it looks at every one that was deleted in the last minute. So folders and files
 * took 1.8 ms of processor time for each of 300 short lives a second (2026-11). A killed worker loses these lines.
 */
const OWN_LINES_PAUSE_MS = 1_000
/** The maximum number of pending bytes when the disk is slow. */
const MAX_PENDING_BYTES = 4 * 1024 * 1024
/**
 * How long all output is dropped after there was too much output or a write failed. A single line then reports how much
 * was dropped.
 */
const RESUME_AFTER_MS = 1_000
/** The minimum size of a record without its text. */
const RECORD_OVERHEAD_BYTES = 36

/** A record to write, and the number of bytes of output that it represents. */
type PendingRecord = { readonly line: string; readonly outputBytes: number }

/** Creates the log for a folder. The folder is opened when it is first needed. */
export function makeSandboxLog({ path, limitBytes, clock, log }: SandboxLogDeps): SandboxLog {
  const allowance = makeTokenBucket(clock)
  const streams = new Set<LogStream>()
  const closing = new AbortController()
  let folder: LogFolder | null = null
  let pending: PendingRecord[] = []
  let pendingBytes = 0
  let lostBytes = 0
  let isLosing = false
  let isFailing = false
  let isRunOpen = false
  let isWriteDue = false
  let ownLinesPause: AbortController | null = null
  let writesDue = 0
  let isUsed = true
  let readers = 0
  let lastFileWork: Promise<void> = Promise.resolve()
  let change = Promise.withResolvers<void>()

  const notifyReaders = (): void => {
    change.resolve()
    change = Promise.withResolvers<void>()
  }
  const openFolder = async (): Promise<LogFolder> => {
    folder ??= await openLogFolder(path, { limitBytes, clock })
    return folder
  }
  const enqueue = (record: PendingRecord): void => {
    if (closing.signal.aborted) return
    pending.push(record)
    pendingBytes += record.line.length
    isUsed = true
    if (record.outputBytes > 0) ownLinesPause?.abort(NOTIFIED)
    if (!isWriteDue) void keepWriting()
  }
  /**
   * Writes pending records until there are none. The first record after a quiet time is written at once, and later
   * records after a pause. Never rejects.
   */
  const keepWriting = async (): Promise<void> => {
    isWriteDue = true
    if (folder === null && readers === 0) await pauseForOwnLines()
    while (pending.length > 0) {
      await flush()
      await interruptibleSleep(clock, WRITE_PAUSE_MS, closing.signal)
    }
    isWriteDue = false
  }
  const pauseForOwnLines = async (): Promise<void> => {
    if (pending.some(({ outputBytes }) => outputBytes > 0)) return
    ownLinesPause = new AbortController()
    await interruptibleSleep(clock, OWN_LINES_PAUSE_MS, ownLinesPause.signal, closing.signal)
    ownLinesPause = null
  }
  /** Runs `work` after all earlier file operations. If it fails, only its own caller gets the error. */
  const serialize = (work: () => Promise<void>): Promise<void> => {
    const done = lastFileWork.then(work)
    const goOn = (): void => {
      // the caller handles the failure
    }
    lastFileWork = done.then(goOn, goOn)
    return done
  }
  /** Writes all pending records. Never rejects. */
  const flush = (): Promise<void> => {
    writesDue += 1
    return serialize(writeHeld)
  }
  const writeHeld = async (): Promise<void> => {
    const batch = pending
    pending = []
    pendingBytes = 0
    try {
      const opened = await openFolder()
      if (batch.length > 0) await opened.append(batch.map(({ line }) => line))
      isFailing = false
    } catch (error) {
      if (!isFailing) log.warn({ error, path }, 'a log can’t be written; its new entries are lost')
      isFailing = true
      lose(batch.reduce((sum, { outputBytes }) => sum + outputBytes, 0))
    }
    writesDue -= 1
    notifyReaders()
  }
  const lose = (bytes: number): void => {
    lostBytes += bytes
    if (isLosing || bytes === 0) return
    isLosing = true
    void resumeAfterPause()
  }
  const resumeAfterPause = async (): Promise<void> => {
    await interruptibleSleep(clock, RESUME_AFTER_MS, closing.signal)
    isLosing = false
    recordLoss()
  }
  const recordLoss = (): void => {
    if (lostBytes === 0) return
    const outputBytes = lostBytes
    lostBytes = 0
    const text = `${String(outputBytes)} bytes of output were not kept: there was more than this log takes\n`
    enqueue({ line: formatRecord({ source: 'system', atMs: clock.now().getTime(), text }), outputBytes })
  }

  return {
    openRun() {
      isRunOpen = true
      isUsed = true
    },
    closeRun() {
      if (!isRunOpen) return
      recordLoss()
      isRunOpen = false
      if (ownLinesPause === null) void flush() // notifies readers that the run has ended
    },
    system(text) {
      recordLoss()
      enqueue({
        line: formatRecord({ source: 'system', atMs: clock.now().getTime(), text: `${text}\n` }),
        outputBytes: 0,
      })
    },
    stream(source) {
      const stream = makeOutputStream({
        clock,
        mayKeep: () => !isLosing && pendingBytes < MAX_PENDING_BYTES && allowance.hasTokens(),
        keep: (text) => {
          const line = formatRecord({ source, atMs: clock.now().getTime(), text })
          const outputBytes = Buffer.byteLength(text)
          allowance.spend(outputBytes + RECORD_OVERHEAD_BYTES)
          enqueue({ line, outputBytes })
        },
        lose,
        onEnd: () => streams.delete(stream),
      })
      streams.add(stream)
      return stream
    },
    flush,
    get segments() {
      return folder?.segments ?? []
    },
    get end() {
      const last = folder?.segments.at(-1)
      return last === undefined ? { generation: 0, offset: 0 } : { generation: last.generation, offset: last.sizeBytes }
    },
    pathOf: (generation) => folder?.pathOf(generation) ?? path,
    get isLive() {
      return isRunOpen || pending.length > 0 || writesDue > 0
    },
    nextChange: () => change.promise,
    addReader() {
      readers += 1
      ownLinesPause?.abort(NOTIFIED)
      let isHeld = true
      return () => {
        if (isHeld) readers -= 1
        isHeld = false
        isUsed = true
      }
    },
    async close() {
      for (const stream of streams) stream.end()
      recordLoss()
      closing.abort(new Error('the logs are closed'))
      await flush()
      await folder?.closeFile()
    },
    async delete() {
      for (const stream of streams) stream.end()
      isRunOpen = false
      await serialize(async () => {
        pending = []
        pendingBytes = 0
        lostBytes = 0
        await folder?.closeFile()
        folder = null
        await removePath(path)
        notifyReaders()
      })
    },
    async closeIfIdle() {
      if (isUsed) {
        isUsed = false
        return false
      }
      await serialize(async () => await folder?.closeFile())
      return !isRunOpen && readers === 0 && streams.size === 0 && pending.length === 0 && !isLosing && !isWriteDue
    },
  }
}
