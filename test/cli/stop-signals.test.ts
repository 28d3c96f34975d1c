import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeStopSignals } from '../../src/cli/stop-signals.ts'
import { makeTestClock } from '../support/test-clock.ts'

test('the first signal asks for a clean stop, another within a second is ignored, and a later one forces the exit', () => {
  const clock = makeTestClock()
  const said: string[] = []
  const forced: string[] = []
  const { signal, handleSignal } = makeStopSignals({
    clock,
    print: (text) => said.push(text),
    force: (name) => forced.push(name),
  })
  assert.ok(!signal.aborted)
  handleSignal('SIGINT')
  assert.ok(signal.aborted)
  clock.advance(999)
  handleSignal('SIGINT')
  assert.deepEqual([said.length, forced], [1, []])
  clock.advance(1)
  handleSignal('SIGTERM')
  assert.deepEqual([said.length, forced], [2, ['SIGTERM']])
})
