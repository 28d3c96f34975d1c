import assert from 'node:assert/strict'
import { test } from 'node:test'
import { cacheForASecond } from '../../../../src/worker/network/rules/own-ranges.ts'

test('an address that this machine gets or loses is known a second later, and the system is asked at most once a second', () => {
  let nowMs = 5_000
  let asked = 0
  let addresses = ['192.0.2.1']
  const own = cacheForASecond({ monotonicMs: () => nowMs }, () => {
    asked += 1
    return addresses
  })
  assert.deepEqual(own(), ['192.0.2.1'])
  addresses = ['192.0.2.2']
  nowMs += 1_000
  assert.deepEqual(own(), ['192.0.2.1'])
  assert.equal(asked, 1)
  nowMs += 1
  assert.deepEqual(own(), ['192.0.2.2'])
})
