import { DAY_MS, startOfMonth, startOfNextMonth, type TimeRange } from './metering.ts'
import { describeSeen, type Refusal } from '../refusal.ts'

/** The longest range of a usage report. */
export const USAGE_RANGE_MAX_DAYS = 366

/** The range that a request asks for. A member is null if the request does not specify it. */
export type RequestedRange = { readonly since: Date | null; readonly until: Date | null }

/**
 * The range of a report, or the reason for its refusal. Without both members, the range is the current UTC month.
 * Without `until`, it ends now. Without `since`, it starts with the UTC month that contains the last instant before
 * `until`.
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
