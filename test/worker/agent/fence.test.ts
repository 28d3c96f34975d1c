import assert from 'node:assert/strict'
import { test } from 'node:test'
import { RENEW_DEADLINE_MS } from '../../../src/domain/workers/lease.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { WorkerRemoved } from '../../../src/worker/agent/control-plane.ts'
import { makeFence } from '../../../src/worker/agent/fence.ts'
import { makeRenewDeadline } from '../../../src/worker/agent/renew-deadline.ts'
import { makeTestClock } from '../../support/test-clock.ts'
import { waitUntil } from '../../support/wait.ts'

const log = makeLog('silent')

/** Makes a fence. Its `destroy` reports `state.left` runs as still alive. `pass` lets the fence check once. */
function makeWorld() {
  const clock = makeTestClock()
  const renewDeadline = makeRenewDeadline(clock)
  const fence = makeFence({ renewDeadline, fencesItself: true, clock, log })
  const over = new AbortController()
  const state = { left: 2, destroyed: 0 }
  const kept = fence.enforce(() => {
    state.destroyed += 1
    return Promise.resolve(state.left)
  }, over.signal)
  const pass = async (): Promise<void> => {
    await waitUntil(() => clock.sleepers > 0)
    clock.advance(1_000)
    await waitUntil(() => clock.sleepers > 0)
  }
  return { clock, renewDeadline, fence, over, state, kept, pass }
}

test('the fence is active from the renew deadline until no run is left, even if a sync is answered in the meantime', async () => {
  const { clock, renewDeadline, fence, over, state, kept, pass } = makeWorld()
  await pass()
  assert.deepEqual([fence.isActive(), state.destroyed], [false, 0])
  clock.advance(RENEW_DEADLINE_MS)
  assert.equal(fence.isActive(), true)
  await pass()
  await renewDeadline.extend(renewDeadline.nowMs())
  assert.deepEqual([renewDeadline.hasPassed(), fence.isActive()], [false, true])
  await pass()
  assert.equal(fence.isActive(), true)
  state.left = 0
  await pass()
  assert.deepEqual([fence.isActive(), state.destroyed], [false, 4])
  await pass()
  assert.equal(state.destroyed, 4)
  over.abort()
  await kept
})

test('a removed worker destroys all its runs, whatever its renew deadline, and ends with the reason; any other refusal destroys nothing', async () => {
  const { fence, state, kept, pass } = makeWorld()
  fence.noteFailure(new Error('401'))
  await pass()
  assert.deepEqual([fence.isActive(), state.destroyed], [false, 0])
  const removed = new WorkerRemoved('it was removed')
  fence.noteFailure(removed)
  assert.equal(fence.isActive(), true)
  await pass()
  assert.equal(state.destroyed, 1)
  state.left = 0
  const ended = assert.rejects(kept, removed)
  await Promise.race([ended, pass()])
  await ended
})
