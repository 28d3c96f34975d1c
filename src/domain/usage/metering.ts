/** Splits time ranges at UTC midnights. All metering counts whole milliseconds, so the parts add up exactly. */

/** `since` is inclusive, `until` exclusive. */
export type TimeRange = { readonly since: Date; readonly until: Date }

export const HOUR_MS = 60 * 60 * 1000
export const DAY_MS = 24 * HOUR_MS

/** A range, split into its whole UTC days and the parts before and after them. */
export type SplitRange = {
  /**
   * Dates such as `2028-02-29`: `first` is inclusive, `end` is exclusive. `first` equals `end` if the range contains no
   * whole day.
   */
  readonly days: { readonly first: string; readonly end: string }
  /** The rest of the range: at most two parts, each shorter than a day and within one UTC day. */
  readonly parts: readonly DayPart[]
}
export type DayPart = TimeRange & { readonly day: string }

/**
 * Splits a range at midnights. Together, days and parts cover the range without overlap. An empty range has neither.
 */
export function splitAtMidnights({ since, until }: TimeRange): SplitRange {
  const first = isMidnight(since) ? since : startOfNextDay(since)
  const end = startOfDay(until)
  if (since >= until) return { days: noDays(since), parts: [] }
  if (first > end) return { days: noDays(since), parts: [partOf(since, until)] }
  const head = since < first ? [partOf(since, first)] : []
  const tail = end < until ? [partOf(end, until)] : []
  return { days: { first: dayOf(first), end: dayOf(end) }, parts: [...head, ...tail] }
}

/** The UTC days that a range touches, in order. */
export function daysOf({ since, until }: TimeRange): readonly string[] {
  return splitIntoDays({ since, until }).map((piece) => dayOf(piece.since))
}

/** Splits a range into pieces, in order. Each piece is within one UTC day. */
export function splitIntoDays({ since, until }: TimeRange): readonly TimeRange[] {
  const pieces: TimeRange[] = []
  for (let from = since; from < until;) {
    const next = startOfNextDay(from)
    const piece = { since: from, until: next < until ? next : until }
    pieces.push(piece)
    from = piece.until
  }
  return pieces
}

/** Splits a range at the midnight in its middle. A range without a midnight stays whole. */
export function halvesOf({ since, until }: TimeRange): readonly TimeRange[] {
  const middle = startOfDay(new Date((since.getTime() + until.getTime()) / 2 + DAY_MS / 2))
  if (middle <= since || middle >= until) return [{ since, until }]
  return [
    { since, until: middle },
    { since: middle, until },
  ]
}

/** A UTC month, such as `2028-02`, with its total hours. */
export type Month = { readonly month: string; readonly hours: number }

/** The UTC months that a range touches, in order. */
export function monthsOf({ since, until }: TimeRange): readonly Month[] {
  const months: Month[] = []
  for (let start = startOfMonth(since); start < until; start = startOfNextMonth(start)) {
    const hours = (startOfNextMonth(start).getTime() - start.getTime()) / HOUR_MS
    months.push({ month: monthOf(dayOf(start)), hours })
  }
  return months
}

/** The month of a day: `2028-02` for `2028-02-29`. */
export function monthOf(day: string): string {
  return day.slice(0, '2028-02'.length)
}

/** The UTC day of an instant, as `2028-02-29`. */
export function dayOf(at: Date): string {
  return at.toISOString().slice(0, '2028-02-29'.length)
}

/** Converts whole milliseconds, as text, to an exact decimal number of seconds. */
export function decimalSeconds(ms: string): string {
  const padded = ms.padStart('0000'.length, '0')
  return `${padded.slice(0, -3)}.${padded.slice(-3)}`
}

export function startOfDay(at: Date): Date {
  return new Date(Math.floor(at.getTime() / DAY_MS) * DAY_MS)
}

export function startOfMonth(at: Date): Date {
  const start = startOfDay(at)
  start.setUTCDate(1)
  return start
}

export function startOfNextMonth(at: Date): Date {
  const start = startOfMonth(at)
  start.setUTCMonth(start.getUTCMonth() + 1)
  return start
}

function startOfNextDay(at: Date): Date {
  return new Date(startOfDay(at).getTime() + DAY_MS)
}

function isMidnight(at: Date): boolean {
  return at.getTime() % DAY_MS === 0
}

function noDays(at: Date): SplitRange['days'] {
  return { first: dayOf(at), end: dayOf(at) }
}

function partOf(since: Date, until: Date): DayPart {
  return { day: dayOf(since), since, until }
}
