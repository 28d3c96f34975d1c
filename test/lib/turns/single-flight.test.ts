import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeSingleFlight } from '../../../src/lib/turns/single-flight.ts'

test('callers of the same key share one run, and the next caller after it starts another', async () => {
  const flights = makeSingleFlight<number>()
  let runs = 0
  const work = (): Promise<number> => Promise.resolve((runs += 1))
  const [one, other] = [flights.join('key', work), flights.join('key', work)]
  assert.deepEqual([one.isLeader, other.isLeader], [true, false])
  assert.deepEqual(await Promise.all([one.result, other.result]), [1, 1])
  assert.equal(await flights.join('other key', work).result, 2)
  assert.equal(await flights.join('key', work).result, 3)
})

test('a caller that aborts leaves alone; the work is aborted when the last caller has left', async () => {
  const flights = makeSingleFlight<void>()
  const work = (signal: AbortSignal): Promise<void> =>
    new Promise((_, reject) => {
      signal.addEventListener('abort', () => reject(new Error('work aborted')))
    })
  const [first, second] = [new AbortController(), new AbortController()]
  let workSignal: AbortSignal | null = null
  const one = flights.join(
    'key',
    (signal) => {
      workSignal = signal
      return work(signal)
    },
    first.signal,
  ).result
  const other = flights.join('key', work, second.signal).result
  const isAborted = (): boolean => workSignal?.aborted === true
  first.abort(new Error('first left'))
  await assert.rejects(one, /first left/)
  assert.equal(isAborted(), false)
  second.abort(new Error('second left'))
  await assert.rejects(other, /second left/)
  assert.equal(isAborted(), true)
  assert.equal(await flights.join('key', () => Promise.resolve()).result, undefined)
})

test('a caller without a signal keeps the work running for itself', async () => {
  const flights = makeSingleFlight<string>()
  const gate = Promise.withResolvers<string>()
  const leaving = new AbortController()
  const staying = flights.join('key', () => gate.promise)
  const left = flights.join('key', () => gate.promise, leaving.signal)
  leaving.abort(new Error('left'))
  await assert.rejects(left.result, /left/)
  gate.resolve('done')
  assert.equal(await staying.result, 'done')
})
