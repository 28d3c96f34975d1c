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
    afterLimit: () => undefined,
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

test('a shutdown that takes too long ends at once, and says what cleans up', () => {
  const said: string[] = []
  const forced: string[] = []
  let pass: () => void = () => assert.fail('no limit was set')
  const { handleSignal } = makeStopSignals({
    clock: makeTestClock(),
    print: (text) => said.push(text),
    force: (name) => forced.push(name),
    afterLimit: (act) => {
      pass = act
    },
  })
  handleSignal('SIGTERM')
  assert.deepEqual(forced, [])
  pass()
  assert.deepEqual(forced, ['SIGTERM'])
  assert.match(said.at(-1) ?? '', /takes too long.*`sandyard down`/)
})
