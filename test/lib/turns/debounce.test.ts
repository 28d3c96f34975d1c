import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { debounce } from '../../../src/lib/turns/debounce.ts'
import { makeTestClock } from '../../support/test-clock.ts'

/** Makes debounced work on a clock of its own. `pass` lets time pass, and what is due then happens. */
function makeWorld(delayMs: number, maxWaitMs: number) {
  const clock = makeTestClock()
  let done = 0
  const later = debounce({ clock, delayMs, maxWaitMs, work: () => void done++ })
  const pass = async (ms: number): Promise<void> => {
    clock.advance(ms)
    await nextTurn()
  }
  return { later, pass, done: () => done }
}

test('work runs once after the last call, and can be scheduled again', async () => {
  const { later, pass, done } = makeWorld(30, 10_000)
  later.schedule()
  await pass(15)
  later.schedule()
  await pass(29)
  assert.equal(done(), 0)
  await pass(1)
  assert.equal(done(), 1)
  await pass(10_000)
  assert.equal(done(), 1)
  later.schedule()
  await pass(30)
  assert.equal(done(), 2)
})

test('with continuous calls, work runs after the maximum wait', async () => {
  const { later, pass, done } = makeWorld(30, 100)
  for (let passedMs = 0; passedMs < 100; passedMs += 10) {
    later.schedule()
    assert.equal(done(), 0)
    await pass(10)
  }
  assert.equal(done(), 1)
})

test('a scheduled run is cancelled by close', async () => {
  const { later, pass, done } = makeWorld(10, 10)
  later.schedule()
  later.close()
  later.schedule()
  await pass(1_000)
  assert.equal(done(), 0)
})

test('a delay of scheduled work schedules none, and ends with the maximum wait', async () => {
  const { later, pass, done } = makeWorld(30, 50)
  later.postpone()
  await pass(1_000)
  assert.equal(done(), 0)
  later.schedule()
  await pass(20)
  later.postpone()
  await pass(29)
  assert.equal(done(), 0)
  later.postpone()
  await pass(1)
  assert.equal(done(), 1)
})
