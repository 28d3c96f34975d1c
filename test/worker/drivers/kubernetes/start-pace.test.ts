import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeStartPace } from '../../../../src/worker/drivers/kubernetes/link/start-pace.ts'

test('the first attempt comes shortly before the fastest of recent starts, and later ones become rare', () => {
  let nowMs = 0
  const pace = makeStartPace({ monotonicMs: () => nowMs })
  /** Starts a Pod whose last attempt of so many is successful after a time. Returns when its first attempt was due. */
  const start = (tookMs: number, count = 2): number => {
    const attempts = pace.begin()
    const firstMs = attempts.nextPauseMs()
    for (let n = 1; n < count; n++) attempts.began()
    nowMs += tookMs
    attempts.began()
    nowMs += 200 // what the attempt itself takes
    attempts.reached()
    return firstMs
  }
  assert.equal(start(1_000), 0, 'nothing is known at first')
  assert.equal(start(2_000), 900)
  assert.equal(start(500), 900)
  assert.equal(start(500), 450)
  for (let n = 0; n < 8; n++) start(1_000)
  assert.equal(start(1_000), 900, 'a faster time is forgotten')
  assert.equal(start(900, 1), 900)
  assert.equal(start(540, 1), 540, 'a first attempt that was successful may have been late')
  assert.equal(start(400), 324)
  assert.equal(start(400), 360)
  const slow = pace.begin()
  const pauses = Array.from({ length: 30 }, () => slow.nextPauseMs()).slice(1)
  assert.deepEqual(
    pauses,
    pauses.toSorted((a, b) => a - b),
  )
  assert.equal(pauses.at(-1), 500)
})
