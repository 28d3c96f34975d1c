import { interruptibleSleep, NOTIFIED, type Clock } from '../../lib/clock.ts'
import type { Notifications } from '../../store/postgres/notifications.ts'

export type NotificationSchedule = {
  readonly clock: Clock
  readonly notifications: Pick<Notifications, 'subscribe'>
  readonly topic: string
  /**
   * The time between two calls of `work` without a notification, in milliseconds. A lost notification costs at most
   * this time.
   */
  readonly everyMs: number
}

/**
 * Calls `work` at once, at each notification of a topic, and after `everyMs` without a notification. Stops when
 * `signal` aborts. `work` must not reject.
 */
export async function runOnNotification(
  schedule: NotificationSchedule,
  work: () => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  const { clock, notifications, topic, everyMs } = schedule
  let notified = new AbortController()
  const unsubscribe = notifications.subscribe(topic, () => notified.abort(NOTIFIED))
  try {
    while (!signal.aborted) {
      notified = new AbortController() // before `work`: a notification during this call then causes another call
      await work()
      await interruptibleSleep(clock, everyMs, notified.signal, signal)
    }
  } finally {
    unsubscribe()
  }
}
