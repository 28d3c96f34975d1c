import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeStartStopwatch } from '../../../../src/worker/drivers/shared/start-stopwatch.ts'
import { makeTestClock } from '../../../support/test-clock.ts'

test('phases are listed in the order in which they began, with their offsets and durations', async () => {
  const clock = makeTestClock(new Date(0))
  const stopwatch = makeStartStopwatch(clock)
  const [image, disk] = [Promise.withResolvers<string>(), Promise.withResolvers<undefined>()]
  const measured = stopwatch.measure('image', image.promise)
  clock.advance(5)
  const overlapping = stopwatch.measure('disk', disk.promise)
  clock.advance(10)
  disk.resolve(undefined)
  await overlapping
  clock.advance(20)
  image.resolve('an image')
  assert.equal(await measured, 'an image')
  assert.deepEqual(stopwatch.phases(), [
    { phase: 'image', offset_ms: 0, duration_ms: 35 },
    { phase: 'disk', offset_ms: 5, duration_ms: 10 },
  ])
})

test('of the phases that fail, only the first ended the start', async () => {
  const stopwatch = makeStartStopwatch(makeTestClock(new Date(0)))
  await assert.rejects(stopwatch.measure('image', Promise.reject(new Error('no such image'))))
  await assert.rejects(stopwatch.measure('rootfs', Promise.reject(new Error('no image'))))
  assert.deepEqual(
    stopwatch.phases().map(({ phase, has_failed }) => [phase, has_failed]),
    [
      ['image', true],
      ['rootfs', undefined],
    ],
  )
})
