import type { Clock } from './clock.ts'
import type { Log } from './log.ts'

/** How many lines with the same sentence are written in a window, and how long that is. */
const MAX_LINES_PER_WINDOW = 5
const WINDOW_MS = 10_000
/** The most sentences that are told apart; the program has some hundred. */
const MAX_MESSAGES = 1_000

type Window = { sinceMs: number; lines: number; omitted: number }

/**
 * A log in which an outage that fails a thousand requests a second leaves some lines: of warnings and errors with the same
 * sentence the first ones of each ten seconds are written, and the next one that is says how many were `omitted` since.
 */
export function rateLimitedLog(log: Log, clock: Clock): Log {
  return limit(log, clock, new Map())
}

function limit(log: Log, clock: Clock, seen: Map<string, Window>): Log {
  const write = (level: 'warn' | 'error') => (fields: object, message: string) => {
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

/** How many lines were left out before this one; null when this one is left out too. */
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
