import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeNameTies } from '../../../src/worker/egress/name-ties.ts'
import { makeTestClock } from '../../support/test-clock.ts'

test('a tie lasts for its time to live, at least a second, and the longer one wins', () => {
  const clock = makeTestClock()
  const ties = makeNameTies(clock)
  ties.add('a.test', [{ address: '1.1.1.1', ttlSecs: 0 }])
  ties.add('b.test', [{ address: '1.1.1.1', ttlSecs: 5 }])
  ties.add('b.test', [{ address: '1.1.1.1', ttlSecs: 2 }])
  assert.deepEqual(ties.namesOf('1.1.1.1'), ['a.test', 'b.test'])
  clock.advance(1_500)
  assert.deepEqual(ties.namesOf('1.1.1.1'), ['b.test'])
  clock.advance(3_600)
  assert.deepEqual(ties.namesOf('1.1.1.1'), [])
})

test('a sandbox has a bounded number of ties; ended ones make room', () => {
  const clock = makeTestClock()
  const ties = makeNameTies(clock)
  const addresses = (count: number, from: number) =>
    Array.from({ length: count }, (_, n) => ({
      address: `10.${String(from)}.${String(n >> 8)}.${String(n & 255)}`,
      ttlSecs: 9,
    }))
  assert.equal(ties.add('large.test', addresses(1_025, 0)), false)
  for (let n = 0; n < 16; n++) assert.ok(ties.add(`n${String(n)}.test`, addresses(1_024, n)))
  assert.equal(ties.add('more.test', addresses(1, 99)), false)
  assert.ok(ties.add('n0.test', addresses(5, 0)), 'what is known needs no room')
  clock.advance(10_000)
  assert.ok(ties.add('more.test', addresses(1, 99)))
})

test('an address has at most 64 names: those that were tied most recently, whatever their time to live', () => {
  const ties = makeNameTies(makeTestClock())
  const at = (address: string, ttlSecs: number) => [{ address, ttlSecs }]
  for (let n = 0; n < 64; n++) assert.ok(ties.add(`n${String(n)}.test`, at('1.1.1.1', 2 ** 31)))
  assert.ok(ties.add('n0.test', at('1.1.1.1', 60)))
  assert.ok(ties.add('more.test', at('1.1.1.1', 60)))
  const names = ties.namesOf('1.1.1.1')
  assert.equal(names.length, 64)
  assert.ok(!names.includes('n1.test'))
  assert.deepEqual(names.slice(-2), ['n0.test', 'more.test'])
})

test('names that an address has lost are not counted', () => {
  const ties = makeNameTies(makeTestClock())
  for (let n = 0; n < 20_000; n++) assert.ok(ties.add(`n${String(n)}.test`, [{ address: '1.1.1.1', ttlSecs: 9 }]))
})
