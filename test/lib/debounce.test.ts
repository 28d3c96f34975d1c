import assert from 'node:assert/strict'
import { test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { debounce } from '../../src/lib/debounce.ts'
import { waitUntil } from '../support/wait.ts'

test('work runs once after the last call, and can be scheduled again', async () => {
  const doneAtMs: number[] = []
  const work = (): void => void doneAtMs.push(systemClock.monotonicMs())
  const later = debounce({ clock: systemClock, delayMs: 30, maxWaitMs: 10_000, work })
  later.schedule()
  await systemClock.sleep(15)
  const lastAskMs = systemClock.monotonicMs()
  later.schedule()
  const atMs = await waitUntil(() => doneAtMs[0], 5_000)
  assert.ok(atMs - lastAskMs >= 29, `done ${String(atMs - lastAskMs)} ms after the last ask`)
  later.schedule()
  await waitUntil(() => doneAtMs[1], 5_000)
  later.close()
})

test('with continuous calls, work runs after the maximum wait', async () => {
  let done = 0
  const later = debounce({ clock: systemClock, delayMs: 5_000, maxWaitMs: 40, work: () => void done++ })
  later.schedule()
  await waitUntil(() => {
    later.schedule()
    return done > 0 ? true : undefined
  }, 2_000)
  later.close()
})

test('a scheduled run is cancelled by close', async () => {
  let done = 0
  const later = debounce({ clock: systemClock, delayMs: 10, maxWaitMs: 10, work: () => void done++ })
  later.schedule()
  later.close()
  later.schedule()
  await systemClock.sleep(30)
  assert.equal(done, 0)
})
