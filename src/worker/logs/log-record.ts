import type { LogEntry, LogPosition, LogSource } from '../../contract/streams/log-protocol.ts'

/** An entry as stored: JSON on a line of its own. */
type LogRecord = { readonly source: LogSource; readonly atMs: number; readonly text: string }

const LETTERS: Readonly<Record<LogSource, string>> = { stdout: 'o', stderr: 'e', output: 't', system: 's' }
const SOURCES: ReadonlyMap<unknown, LogSource> = new Map(
  Object.entries(LETTERS).map(([source, letter]) => [letter, source as LogSource]), // the keys of the table above
)

/** Encodes a record with its line feed. The keys are short, because most lines of output are short too. */
export function formatRecord({ source, atMs, text }: LogRecord): string {
  return `{"s":"${LETTERS[source]}","t":${String(atMs)},"x":${JSON.stringify(text)}}\n`
}

/**
 * Parses a line. Null when the line isn't a complete record, for example because reading started in the middle of it.
 */
export function parseRecord(line: string): LogRecord | null {
  try {
    const value: unknown = JSON.parse(line)
    if (typeof value !== 'object' || value === null || !('s' in value && 't' in value && 'x' in value)) return null
    const source = SOURCES.get(value.s)
    if (source === undefined || typeof value.t !== 'number' || typeof value.x !== 'string') return null
    return { source, atMs: value.t, text: value.x }
  } catch (error) {
    if (error instanceof SyntaxError) return null
    throw error
  }
}

/** Converts a record to an entry. `position` is the position of the record's end. */
export function toEntry({ source, atMs, text }: LogRecord, position: LogEntry['position']): LogEntry {
  return { position, source, ts: new Date(atMs).toISOString(), text }
}

/** Compares two positions for sorting. Negative when `a` is before `b`. */
export function comparePositions(a: LogPosition, b: LogPosition): number {
  return a.generation === b.generation ? a.offset - b.offset : a.generation - b.generation
}

/** The position before all entries. */
export const LOG_START: LogPosition = { generation: 0, offset: 0 }
