/** When a failed delivery is tried again. */
export type RetrySchedule = {
  /** The shortest and longest pause between two attempts. */
  readonly firstMs: number
  readonly lastMs: number
  /** How long a delivery is tried, from its first attempt on. */
  readonly totalMs: number
}

const HOUR_MS = 3_600_000

/** Three days: 5 s, then twice as long each time, up to 4 hours. */
export const RETRY_SCHEDULE: RetrySchedule = { firstMs: 5_000, lastMs: 4 * HOUR_MS, totalMs: 72 * HOUR_MS }

/** The part of a pause that is random, so that the deliveries that one outage made fail don't all come back at once. */
const JITTER = 0.2

/**
 * The pause before the next attempt, in milliseconds. It is as long as the delivery has been tried for, so that each attempt doubles
 * the time. An endpoint may request a longer one, up to the longest of the schedule. Null: it is not tried again. `random` is from 0 to 1.
 */
export function retryDelayMs(
  { firstMs, lastMs, totalMs }: RetrySchedule,
  { triedMs, requestedMs }: { readonly triedMs: number; readonly requestedMs: number | null },
  random: number,
): number | null {
  const pauseMs = Math.min(Math.max(triedMs, firstMs), lastMs)
  const ownMs = Math.round(pauseMs * (1 - JITTER + 2 * JITTER * random))
  const delayMs = Math.max(ownMs, Math.min(requestedMs ?? 0, lastMs))
  return triedMs + delayMs > totalMs ? null : delayMs
}

/**
 * The pause that a header `Retry-After` requests, in milliseconds: seconds or a date (RFC 9110, section 10.2.3). Null: there is none, or it
 * is neither.
 */
export function retryAfterMs(header: string | null, now: Date): number | null {
  if (header === null) return null
  if (/^\d{1,9}$/.test(header)) return Number(header) * 1000
  const atMs = header.endsWith(' GMT') ? Date.parse(header) : Number.NaN // other texts may parse as years
  return Number.isNaN(atMs) ? null : Math.max(0, atMs - now.getTime())
}
