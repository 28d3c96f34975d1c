import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { SANDBOX_IDS } from '../../../../src/domain/workers/id-range.ts'
import { mountIdMap } from '../../../../src/worker/drivers/oci/users/id-maps.ts'
import { makeIdRanges } from '../../../../src/worker/drivers/oci/users/id-ranges.ts'

const RANGE = { first: 1_000_000, last: 1_000_000 + 6 * SANDBOX_IDS + 5 }

test('no two held ranges overlap, none leaves the range of the setting, and every free one is found', () => {
  const steps = fc.array(fc.oneof(fc.constant('allocate' as const), fc.nat(20)), { maxLength: 60 })
  const earlier = fc.array(fc.integer({ min: RANGE.first - 100_000, max: RANGE.last + 100_000 }), { maxLength: 2 })
  fc.assert(
    fc.property(steps, earlier, fc.nat(), (actions, held, startAt) => {
      const ranges = makeIdRanges({ range: RANGE, held, startAt })
      const own: number[] = []
      for (const action of actions) {
        if (action !== 'allocate') {
          for (const first of own.splice(action, 1)) ranges.free(first)
          continue
        }
        const first = ranges.allocate()
        if (first === null) {
          assert.ok(own.length + 2 * held.length >= 6, 'a free range was not found')
          continue
        }
        assert.ok(first >= RANGE.first && first + SANDBOX_IDS - 1 <= RANGE.last)
        for (const other of [...held, ...own]) assert.ok(Math.abs(other - first) >= SANDBOX_IDS)
        own.push(first)
      }
    }),
  )
})

test('the map of a mount shows stored ids as shown ones, and gives each of the other ids exactly one owner', () => {
  for (const [stored, shown] of [
    [100_000, 1_879_048_192],
    [200_000, 200_000 + SANDBOX_IDS],
    [3_000_000, 200_000],
  ] as const) {
    const extents = mountIdMap(stored, shown)
      .trimEnd()
      .split('\n')
      .map((line) => line.split(' ').map(Number))
    const shownAs = (id: number): number | null => {
      const found = extents.find(([inside = 0, , count = 0]) => id >= inside && id < inside + count)
      return found === undefined ? null : id - (found[0] ?? 0) + (found[1] ?? 0)
    }
    assert.equal(shownAs(stored + 1000), shown + 1000)
    assert.equal(shownAs(shown + 1000), stored + 1000)
    for (const id of [0, 1000, stored - 1, stored + SANDBOX_IDS, shown - 1, shown + SANDBOX_IDS, 2 ** 32 - 2]) {
      const [low, high] = [Math.min(stored, shown), Math.max(stored, shown)]
      const isSwapped = (id >= low && id < low + SANDBOX_IDS) || (id >= high && id < high + SANDBOX_IDS)
      if (!isSwapped) assert.equal(shownAs(id), id)
    }
    assert.equal(shownAs(2 ** 32 - 1), null)
    assert.equal(
      extents.reduce((sum, [, , count = 0]) => sum + count, 0),
      2 ** 32 - 1,
    )
    assert.ok(extents.length <= 5, 'the kernel keeps five extents without a table')
  }
})
