import { DAY_MS, startOfMonth, startOfNextMonth, type TimeRange } from './metering.ts'
import { describeSeen, type Refusal } from '../refusal.ts'

/** The longest range of a usage report. Source: contract decisions, "Time range of the usage routes". */
export const USAGE_RANGE_MAX_DAYS = 366

/** The range that a report is asked for; null where nothing was said. */
export type RequestedRange = { readonly since: Date | null; readonly until: Date | null }

/**
 * The range of a report, or why there is none. Without `until` it reaches to the end of the current UTC month when
 * `since` is not given either (nothing is metered of the time to come), else to now; without `since` it starts with the
 * month that `until` closes.
 */
export function resolveUsageRange(
  { since, until }: RequestedRange,
  now: Date,
): { readonly kind: 'range'; readonly range: TimeRange } | { readonly kind: 'refused'; readonly refusal: Refusal } {
  const end = until ?? (since === null ? startOfNextMonth(now) : now)
  const start = since ?? startOfMonth(new Date(end.getTime() - 1))
  if (end <= start) {
    return until === null
      ? refused('query.since', start, `an instant before now, ${now.toISOString()}`)
      : refused('query.until', end, `an instant after since, ${start.toISOString()}`)
  }
  if (end.getTime() - start.getTime() > USAGE_RANGE_MAX_DAYS * DAY_MS)
    return refused('query.since', start, `at most ${String(USAGE_RANGE_MAX_DAYS)} days before ${end.toISOString()}`)
  return { kind: 'range', range: { since: start, until: end } }
}

function refused(field: string, seen: Date, accepted: string) {
  const refusal: Refusal = { code: 'invalid_request', field, seen: describeSeen(seen.toISOString()), accepted }
  return { kind: 'refused', refusal } as const
}
