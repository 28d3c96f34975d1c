import type { Readable } from 'node:stream'
import { nextTurn } from '../../lib/turns/next-turn.ts'
import { LOG_SOURCES, type LogEntry } from '../../contract/streams/log-protocol.ts'

/** A batch of log entries. `isLast`: the log is complete. */
export type LogBatch = { readonly entries: readonly LogEntry[]; readonly isLast: boolean }

/**
 * The longest line that a worker may send, in characters. The text of a log entry has at most 16 KiB, and JSON escapes
 * make it at most six times as long.
 */
const LINE_MAX_CHARS = 256 * 1024

/** A chunk with as many lines has a turn of the event loop for itself. */
const MANY_LINES = 64

/**
 * Parses the log stream of a worker (`log-protocol.ts`) at the reader's pace. It yields one batch for each chunk that
 * arrives. It ends after the batch with `isLast`. If the stream ends early, there is no such batch. Throws for anything
 * outside the protocol, because clients fail on unknown values.
 */
export async function* readLogBatches(stream: Readable): AsyncGenerator<LogBatch> {
  stream.setEncoding('utf8')
  const pieces: AsyncIterable<string> = stream
  let rest = ''
  for await (const piece of pieces) {
    const lines = (rest + piece).split('\n')
    rest = lines.pop() ?? ''
    if (rest.length > LINE_MAX_CHARS) throw new Error('a worker sent a log line that is too long')
    if (lines.length >= MANY_LINES) await nextTurn()
    const batch = parseLines(lines)
    yield batch
    if (batch.isLast) return
  }
}

function parseLines(lines: readonly string[]): LogBatch {
  const entries: LogEntry[] = []
  for (const line of lines) {
    const parsed = parseJson(line)
    if (typeof parsed === 'object' && parsed !== null && 'end' in parsed) return { entries, isLast: true }
    const entry = parseEntry(parsed)
    if (entry === null) throw new Error('a worker sent an invalid log line')
    entries.push(entry)
  }
  return { entries, isLast: false }
}

/**
 * Parses JSON. Returns undefined for any other text, because the message of the parser's error would repeat what a
 * sandbox wrote.
 */
function parseJson(line: string): unknown {
  try {
    return JSON.parse(line)
  } catch (error) {
    if (error instanceof SyntaxError) return undefined
    throw error
  }
}

function parseEntry(line: unknown): LogEntry | null {
  if (typeof line !== 'object' || line === null) return null
  if (!('position' in line && 'source' in line && 'ts' in line && 'text' in line)) return null
  const { position, ts, text } = line
  const source = LOG_SOURCES.find((one) => one === line.source)
  if (typeof position !== 'object' || position === null || !('generation' in position && 'offset' in position))
    return null
  const { generation, offset } = position
  if (!isCount(generation) || !isCount(offset) || source === undefined) return null
  return isInstant(ts) && typeof text === 'string' ? { position: { generation, offset }, source, ts, text } : null
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && Number(value) >= 0
}

/** RFC 3339 in UTC as `Date` writes it: the only form that workers send. */
const INSTANT_SHAPE = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$/

function isInstant(value: unknown): value is string {
  return typeof value === 'string' && INSTANT_SHAPE.test(value)
}
