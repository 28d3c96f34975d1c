import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeTiedElements } from '../../../../src/worker/network/rules/tied-elements.ts'
import { makeTestClock } from '../../../support/test-clock.ts'

test('a sandbox has a bounded number of addresses in all its sets together; ended ones make room', () => {
  const clock = makeTestClock()
  const elements = makeTiedElements(clock)
  const tied = (count: number, from: number, secs: number) =>
    new Map(Array.from({ length: count }, (_, n) => [`10.${String(from)}.${String(n >> 8)}.${String(n & 255)}`, secs]))
  const long = 2 ** 31
  assert.ok(elements.add([0, 1, 2, 3], tied(2_048, 0, long)))
  assert.ok(elements.add([0, 1, 2, 3], tied(2_048, 1, 9)))
  assert.equal(elements.add([4], tied(1, 0, long)), false)
  assert.ok(elements.add([0, 1, 2, 3], tied(2_048, 0, long)), 'what is known is not counted again')
  clock.advance(9_000)
  assert.ok(elements.add([4], tied(8_192, 2, long)))
  assert.equal(elements.add([4], tied(1, 3, long)), false)
})
