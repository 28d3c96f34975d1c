import { interruptibleSleep, NOTIFIED, type Clock } from '../../lib/clock.ts'
import type { Notifications } from '../../store/postgres/notifications.ts'

export type NotificationSchedule = {
  readonly clock: Clock
  readonly notifications: Pick<Notifications, 'subscribe'>
  readonly topic: string
  /**
   * The time between two calls of `work` without a notification, in milliseconds. A lost notification costs at most
   * this.
   */
  readonly everyMs: number
}

/**
 * Calls `work` at once, at each notification of a topic, and after `everyMs` without a notification. Stops when
 * `signal` aborts. `work` must not reject.
 */
export async function runOnNotification(
  looking: NotificationSchedule,
  work: () => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  const { clock, notifications, topic, everyMs } = looking
  let notified = new AbortController()
  const unsubscribe = notifications.subscribe(topic, () => notified.abort(NOTIFIED))
  try {
    while (!signal.aborted) {
      notified = new AbortController() // before the call: a notification during it causes another one
      await work()
      await interruptibleSleep(clock, everyMs, AbortSignal.any([notified.signal, signal]))
    }
  } finally {
    unsubscribe()
  }
}
