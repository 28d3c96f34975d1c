import type { Notifications } from '../../src/store/postgres/notifications.ts'
import type { Gates, Incarnation } from './gates.ts'

/**
 * The notifications of all processes. The publishing process gets its own at once. Every other process gets them when
 * its gate opens, or never if the schedule refuses the gate.
 */
export type NotificationBus = { connect(incarnation: Incarnation): Notifications }

/** Creates the bus of one schedule. */
export function makeNotificationBus(gates: Gates): NotificationBus {
  type Receiver = {
    readonly incarnation: Incarnation
    readonly receive: (topics: readonly string[]) => void
    waiting: Set<string>
  }
  const receivers: Receiver[] = []
  const send = (receiver: Receiver, topics: readonly string[]): void => {
    const isFirst = receiver.waiting.size === 0
    for (const topic of topics) receiver.waiting.add(topic)
    if (!isFirst) return
    const deliver = (): void => {
      const topicsOfAll = [...receiver.waiting]
      receiver.waiting = new Set()
      receiver.receive(topicsOfAll)
    }
    const lose = (): void => {
      receiver.waiting = new Set()
    }
    void gates
      .pass(
        receiver.incarnation,
        { kind: 'notification', label: topics.join(' '), endings: ['done', 'refused'] },
        deliver,
      )
      .catch(lose)
  }
  return {
    connect(incarnation) {
      const byTopic = new Map<string, Set<() => void>>()
      const receive = (topics: readonly string[]): void => {
        for (const topic of topics) for (const callback of byTopic.get(topic) ?? []) callback()
      }
      receivers.push({ incarnation, receive, waiting: new Set() })
      return {
        publish(topics) {
          if (incarnation.isDead || topics.length === 0) return
          receive(topics)
          for (const other of receivers)
            if (other.incarnation !== incarnation && !other.incarnation.isDead) send(other, topics)
        },
        subscribe(topic, callback) {
          const entry = (): void => {
            if (!incarnation.isDead) callback()
          }
          const entries = byTopic.get(topic) ?? new Set()
          byTopic.set(topic, entries.add(entry))
          return () => void entries.delete(entry)
        },
        [Symbol.asyncDispose]: () => Promise.resolve(),
      }
    },
  }
}
