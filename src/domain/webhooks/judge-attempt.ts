import { retryDelayMs, type RetrySchedule } from './retry-schedule.ts'
import type { DeliveryStatus, PauseReason } from './webhook.ts'

/** What follows from an attempt: the status of the delivery, when it is tried again, and why its webhook is paused, if it is. */
export type Verdict = {
  readonly status: DeliveryStatus
  readonly next_attempt_at: Date | null
  readonly pause: PauseReason | null
}

/** The status with which an endpoint says that it is gone for good. */
const GONE = 410

/**
 * Judges an attempt. Only a status from 200 to 299 delivers. A delivery that is given up fails, and pauses its webhook. One whose endpoint
 * is gone waits until the webhook resumes. `random` is from 0 to 1.
 */
export function judgeAttempt(
  schedule: RetrySchedule,
  attempt: {
    readonly reply_status: number | null
    readonly retry_after_ms: number | null
    readonly tried_since: Date
    readonly at: Date
  },
  random: number,
): Verdict {
  const { reply_status, retry_after_ms, tried_since, at } = attempt
  if (reply_status !== null && reply_status >= 200 && reply_status <= 299)
    return { status: 'delivered', next_attempt_at: null, pause: null }
  if (reply_status === GONE) return { status: 'waiting', next_attempt_at: null, pause: 'gone' }
  const triedMs = at.getTime() - tried_since.getTime()
  const delayMs = retryDelayMs(schedule, { triedMs, requestedMs: retry_after_ms }, random)
  if (delayMs === null) return { status: 'failed', next_attempt_at: null, pause: 'failing' }
  return { status: 'waiting', next_attempt_at: new Date(at.getTime() + delayMs), pause: null }
}
