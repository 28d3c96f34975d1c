import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { applyLatest } from '../../../src/lib/turns/apply-latest.ts'

test('values are applied one at a time, the first at once and of those that wait only the latest', async () => {
  const applied: number[] = []
  const ends: (() => void)[] = []
  const apply = applyLatest(async (value: number) => {
    applied.push(value)
    await new Promise<void>((resolve) => ends.push(resolve))
  })
  for (let value = 1; value <= 1000; value++) apply(value)
  assert.deepEqual(applied, [1])
  ends[0]?.()
  await setImmediate()
  assert.deepEqual(applied, [1, 1000])
  ends[1]?.()
  await setImmediate()
  apply(1001)
  assert.deepEqual(applied, [1, 1000, 1001])
})
