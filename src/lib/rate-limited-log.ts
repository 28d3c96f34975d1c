import type { Clock } from './clock.ts'
import type { Log, LogFields } from './log.ts'

/** The maximum number of lines with the same message per window. Further lines are omitted. */
const MAX_LINES_PER_WINDOW = 5
const WINDOW_MS = 10_000
/** The maximum number of different messages to count. The program has some hundred. */
const MAX_MESSAGES = 1_000

type Window = { sinceMs: number; lines: number; omitted: number }

/**
 * A log that limits repeated warnings and errors, so that an outage that fails a thousand requests per second leaves
 * only a few lines. In each window of ten seconds, the first five lines with a message are written. The next line with
 * that message contains the number of `omitted` lines.
 */
export function rateLimitedLog(log: Log, clock: Clock): Log {
  return limit(log, clock, new Map())
}

function limit(log: Log, clock: Clock, seen: Map<string, Window>): Log {
  const write = (level: 'warn' | 'error') => (fields: LogFields, message: string) => {
    const omitted = admit(seen, message, clock.monotonicMs())
    if (omitted !== null) log[level](omitted === 0 ? fields : { ...fields, omitted }, message)
  }
  return {
    debug: (fields, message) => {
      log.debug(fields, message)
    },
    info: (fields, message) => {
      log.info(fields, message)
    },
    warn: write('warn'),
    error: write('error'),
    child: (fields) => limit(log.child(fields), clock, seen),
  }
}

/**
 * Decides whether to write a line with this message. Returns null to omit the line, otherwise the number of such lines
 * that were omitted since the last written one.
 */
function admit(seen: Map<string, Window>, message: string, nowMs: number): number | null {
  const known = seen.get(message)
  if (known === undefined || nowMs - known.sinceMs >= WINDOW_MS) {
    if (known === undefined && seen.size >= MAX_MESSAGES) seen.clear()
    seen.set(message, { sinceMs: nowMs, lines: 1, omitted: 0 })
    return known?.omitted ?? 0
  }
  if (known.lines < MAX_LINES_PER_WINDOW) {
    known.lines += 1
    return 0
  }
  known.omitted += 1
  return null
}
