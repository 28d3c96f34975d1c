import type { LogEntry, LogPosition, LogQuery } from '../../contract/streams/log-protocol.ts'
import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import { LOG_START, comparePositions } from './position.ts'
import type { ReadableLog } from './sandbox-log.ts'
import { findTail, scanForward } from './scan-log.ts'

/** A timer can't be longer than 24 days; this is long enough to be nothing. */
const LONGEST_WAIT_MS = 3_600_000

/**
 * What a query wants of a log, oldest first, in constant memory. A follower is woken by the writer; it ends with the
 * last run or once `until` is over. Throws the signal's reason when it is aborted.
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
    const stretch = { from: at, to: log.end }
    if (comparePositions(at, stretch.to) < 0) at = await findTail(log, stretch, { count: query.tail, accepts, signal })
  }
  for (;;) {
    signal.throwIfAborted()
    // All three before reading: what is written while this reads is a change, and no end was seen too early.
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

/** A position beyond all that is here is one of another log: everything here is behind it. */
function startPosition({ end }: ReadableLog, after: LogPosition | null): LogPosition {
  return after === null || after.generation > end.generation ? LOG_START : after
}

function makeFilter({ sources, since, until }: LogQuery): (entry: LogEntry) => boolean {
  const wanted = new Set(sources)
  // A caller's texts may have other digits or another zone than ours.
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
  const over = new AbortController()
  const either = AbortSignal.any([signal, over.signal])
  try {
    await Promise.race([change, interruptibleSleep(clock, Math.min(LONGEST_WAIT_MS, Math.max(0, limitMs)), either)])
  } finally {
    over.abort()
  }
}
