import assert from 'node:assert/strict'
import { test } from 'node:test'
import { runOnNotification } from '../../../src/control/requests/run-on-notification.ts'
import { makeTestClock } from '../../support/test-clock.ts'
import { waitUntil } from '../../support/wait.ts'

test('a notification during the first run leads to another run, and the subscription ends with the signal', async () => {
  const clock = makeTestClock()
  const subscribed = new Set<() => void>()
  const notifications = {
    subscribe: (_topic: string, callback: () => void) => {
      subscribed.add(callback)
      return () => void subscribed.delete(callback)
    },
  }
  const ending = new AbortController()
  const ends: (() => void)[] = []
  const look = (): Promise<void> => new Promise((resolve) => ends.push(resolve))
  const ended = runOnNotification({ clock, notifications, topic: 'rows', everyMs: 1_000 }, look, ending.signal)
  await waitUntil(() => ends.length === 1) // the clock has not advanced, so the notification alone caused this run
  for (const callback of subscribed) callback()
  ends[0]?.()
  await waitUntil(() => ends.length === 2)
  ends[1]?.()
  await waitUntil(() => clock.sleepers === 1)
  clock.advance(1_000)
  await waitUntil(() => ends.length === 3)
  ends[2]?.()
  ending.abort()
  await ended
  assert.equal(subscribed.size, 0)
})
