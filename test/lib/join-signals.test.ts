import assert from 'node:assert/strict'
import { getEventListeners } from 'node:events'
import { test } from 'node:test'
import { joinSignals } from '../../src/lib/join-signals.ts'

test('joined signals abort with the reason of the first that does', () => {
  const [first, second] = [new AbortController(), new AbortController()]
  const { signal } = joinSignals(first.signal, second.signal)
  assert.equal(signal.aborted, false)
  second.abort(new Error('second'))
  first.abort(new Error('first'))
  assert.equal(signal.reason.message, 'second')
})

test('signals that were aborted before are aborted at once', () => {
  const { signal } = joinSignals(new AbortController().signal, AbortSignal.abort(new Error('before')))
  assert.equal(signal.reason.message, 'before')
})

test('after it is disposed of, nothing of a joined signal is left in its sources', () => {
  const [first, second] = [new AbortController(), new AbortController()]
  const joined = joinSignals(first.signal, second.signal)
  joined[Symbol.dispose]()
  first.abort()
  assert.equal(joined.signal.aborted, false)
  assert.deepEqual(
    [first, second].map(({ signal }) => getEventListeners(signal, 'abort').length),
    [0, 0],
  )
})

test('an aborted signal leaves nothing behind in the others', () => {
  const [first, second] = [new AbortController(), new AbortController()]
  joinSignals(first.signal, second.signal)
  first.abort()
  assert.equal(getEventListeners(second.signal, 'abort').length, 0)
})
