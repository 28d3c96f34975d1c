import type { Notifications } from '../../src/store/postgres/notifications.ts'
import type { Gates, Life } from './gates.ts'

/** The wake-ups of all processes of a schedule: within a process at once, to the others when their gate opens, or never. */
export type WakeBus = { of(life: Life): Notifications }

/** Makes the bus of one schedule. */
export function makeWakeBus(gates: Gates): WakeBus {
  type Ear = { readonly life: Life; readonly hear: (topics: readonly string[]) => void; waiting: Set<string> }
  const ears: Ear[] = []
  const send = (ear: Ear, topics: readonly string[]): void => {
    const isFirst = ear.waiting.size === 0
    for (const topic of topics) ear.waiting.add(topic)
    if (!isFirst) return
    const deliver = (): void => {
      const heard = [...ear.waiting]
      ear.waiting = new Set()
      ear.hear(heard)
    }
    const lose = (): void => {
      ear.waiting = new Set()
    }
    void gates
      .pass(ear.life, { kind: 'wake', label: topics.join(' '), endings: ['done', 'refused'] }, deliver)
      .catch(lose)
  }
  return {
    of(life) {
      const byTopic = new Map<string, Set<() => void>>()
      const hear = (topics: readonly string[]): void => {
        for (const topic of topics) for (const callback of byTopic.get(topic) ?? []) callback()
      }
      ears.push({ life, hear, waiting: new Set() })
      return {
        publish(topics) {
          if (life.isDead || topics.length === 0) return
          hear(topics)
          for (const ear of ears) if (ear.life !== life && !ear.life.isDead) send(ear, topics)
        },
        subscribe(topic, callback) {
          const entry = (): void => {
            if (!life.isDead) callback()
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
