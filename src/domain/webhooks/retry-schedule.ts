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
 * the time. Null: it is not tried again. `random` is from 0 to 1.
 */
export function retryDelayMs(
  { firstMs, lastMs, totalMs }: RetrySchedule,
  triedMs: number,
  random: number,
): number | null {
  const pauseMs = Math.min(Math.max(triedMs, firstMs), lastMs)
  const delayMs = Math.round(pauseMs * (1 - JITTER + 2 * JITTER * random))
  return triedMs + delayMs > totalMs ? null : delayMs
}
