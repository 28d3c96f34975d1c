import assert from 'node:assert/strict'
import { test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { makeWhenQuiet } from '../../src/lib/when-quiet.ts'
import { waitUntil } from '../support/wait.ts'

test('work waits until nobody asks for it any more, is done once, and can be asked for again', async () => {
  const doneAtMs: number[] = []
  const work = (): void => void doneAtMs.push(systemClock.monotonicMs())
  const later = makeWhenQuiet({ clock: systemClock, quietMs: 30, limitMs: 10_000, work })
  later.ask()
  await systemClock.sleep(15)
  const lastAskMs = systemClock.monotonicMs()
  later.ask()
  const atMs = await waitUntil(() => doneAtMs[0], 5_000)
  assert.ok(atMs - lastAskMs >= 29, `done ${String(atMs - lastAskMs)} ms after the last ask`)
  later.ask()
  await waitUntil(() => doneAtMs[1], 5_000)
  later.close()
})

test('work that is asked for without a pause is done at the limit all the same', async () => {
  let done = 0
  const later = makeWhenQuiet({ clock: systemClock, quietMs: 5_000, limitMs: 40, work: () => void done++ })
  later.ask()
  await waitUntil(() => {
    later.ask()
    return done > 0 ? true : undefined
  }, 2_000)
  later.close()
})

test('what was asked for is forgotten once it is closed', async () => {
  let done = 0
  const later = makeWhenQuiet({ clock: systemClock, quietMs: 10, limitMs: 10, work: () => void done++ })
  later.ask()
  later.close()
  later.ask()
  await systemClock.sleep(30)
  assert.equal(done, 0)
})
