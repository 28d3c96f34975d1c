import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { makeTokenBuckets } from '../../../src/lib/turns/token-buckets.ts'

const steps = fc.array(fc.record({ afterMs: fc.nat({ max: 3_000 }), tokens: fc.integer({ min: 1, max: 5 }) }), {
  maxLength: 60,
})

test('in any period a key gets at most the burst plus what the rate adds, and never less than the bucket had announced', () => {
  fc.assert(
    fc.property(steps, ([...asked]) => {
      const rate = { perSec: 4, burst: 10 }
      const buckets = makeTokenBuckets(rate, 100)
      const granted: { readonly atMs: number; readonly tokens: number }[] = []
      let nowMs = 0
      for (const { afterMs, tokens } of asked) {
        nowMs += afterMs
        const { enoughAfterSecs } = buckets.peek('one', tokens, nowMs)
        if (enoughAfterSecs > 0) {
          const later = buckets.peek('one', tokens, nowMs + enoughAfterSecs * 1000)
          assert.equal(later.enoughAfterSecs, 0, 'who comes back when he was told to is served')
          continue
        }
        buckets.take('one', tokens, nowMs)
        granted.push({ atMs: nowMs, tokens })
      }
      for (const [first, from] of granted.entries()) {
        let sum = 0
        for (const { atMs, tokens } of granted.slice(first)) {
          sum += tokens
          assert.ok(sum <= rate.burst + ((atMs - from.atMs) / 1000) * rate.perSec + 1e-6)
        }
      }
    }),
  )
})

test('what a key owes is taken from what it gets next, up to another burst', () => {
  fc.assert(
    fc.property(steps, fc.array(fc.nat({ max: 10 })), (asked, debts) => {
      const rate = { perSec: 4, burst: 10 }
      const buckets = makeTokenBuckets(rate, 100)
      const owed = [...debts]
      let nowMs = 0
      let sum = 0
      for (const { afterMs, tokens } of asked) {
        nowMs += afterMs
        if (buckets.peek('one', tokens, nowMs).enoughAfterSecs > 0) continue
        const more = owed.shift() ?? 0
        buckets.take('one', tokens, nowMs)
        buckets.owe('one', more, nowMs)
        sum += tokens + more
        assert.ok(sum <= 2 * rate.burst + (nowMs / 1000) * rate.perSec + 1e-6)
      }
    }),
  )
  const buckets = makeTokenBuckets({ perSec: 1, burst: 5 }, 100)
  buckets.owe('one', 50, 0)
  assert.deepEqual(buckets.peek('one', 1, 0), { remaining: 0, fullAfterSecs: 10, enoughAfterSecs: 6 })
})

test('a cost above the bucket’s size is served from a full bucket and empties it', () => {
  const buckets = makeTokenBuckets({ perSec: 1, burst: 5 }, 100)
  assert.equal(buckets.peek('one', 50, 0).enoughAfterSecs, 0)
  buckets.take('one', 50, 0)
  assert.deepEqual(buckets.peek('one', 1, 0), { remaining: 0, fullAfterSecs: 5, enoughAfterSecs: 1 })
})

test('unused keys are forgotten, and there are never more keys than the limit', () => {
  const buckets = makeTokenBuckets({ perSec: 1, burst: 2 }, 1_000)
  for (let key = 0; key < 5_000; key++) buckets.take(String(key), 1, 0)
  assert.ok(buckets.size <= 1_001, String(buckets.size))
  for (let key = 0; key < 2_000; key++) buckets.take('busy', 1, 10_000 + key)
  assert.equal(buckets.size, 1)
})
