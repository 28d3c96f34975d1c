import { interruptibleSleep, NOTIFIED, type Clock } from '../../lib/clock.ts'
import type { Notifications } from '../../store/postgres/notifications.ts'

export type NotificationSchedule = {
  readonly clock: Clock
  readonly notifications: Pick<Notifications, 'subscribe'>
  readonly topic: string
  /** What a lost notification costs, in milliseconds. */
  readonly everyMs: number
}

/** Looks at once, at each notification of a topic, and after a while without one, until the signal. A look must not reject. */
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
      notified = new AbortController() // before the look: a notification that comes during it leads to another
      await work()
      await interruptibleSleep(clock, everyMs, AbortSignal.any([notified.signal, signal]))
    }
  } finally {
    unsubscribe()
  }
}
