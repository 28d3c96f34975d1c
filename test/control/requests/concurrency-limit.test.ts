import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { makeConcurrencyLimit } from '../../../src/control/requests/concurrency-limit.ts'
import { Problem } from '../../../src/domain/problem.ts'

type Thing = { readonly box: string; readonly org: string }
const LIMITS = { box: 2, org: 3, all: 5 } as const
const makeThingLimit = (): ReturnType<typeof makeConcurrencyLimit<Thing>> =>
  makeConcurrencyLimit<Thing>(
    [
      { name: 'per_box', variable: 'PER_BOX', max: LIMITS.box, keyOf: ({ box }) => box },
      { name: 'per_org', variable: 'PER_ORG', max: LIMITS.org, keyOf: ({ org }) => org },
      { name: 'in_all', variable: 'IN_ALL', max: LIMITS.all, keyOf: () => 'all' },
    ],
    'use fewer',
  )

/**
 * One step: acquires a permit, or releases the permit with this index among all permits acquired so far, perhaps again.
 */
const step = fc.oneof(
  fc.record({ box: fc.constantFrom('1', '2', '3', '4'), org: fc.constantFrom('a', 'b') }),
  fc.record({ release: fc.nat(20) }),
)

test('a concurrency limit is never exceeded, never refuses below its maximum, and counts a release once', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const limit = makeThingLimit()
      const ever: { readonly thing: Thing; readonly release: () => void; isHeld: boolean }[] = []
      for (const one of steps) {
        const held = ever.filter(({ isHeld }) => isHeld).map(({ thing }) => thing)
        assert.equal(limit.permitsInUse, held.length)
        if ('release' in one) {
          const permit = ever[one.release]
          permit?.release()
          if (permit !== undefined) permit.isHeld = false
          continue
        }
        const counts = [
          ['per_box', held.filter(({ box }) => box === one.box).length, LIMITS.box],
          ['per_org', held.filter(({ org }) => org === one.org).length, LIMITS.org],
          ['in_all', held.length, LIMITS.all],
        ] as const
        const full = counts.find(([, count, max]) => count === max)?.[0]
        if (full === undefined) ever.push({ thing: one, release: limit.acquire(one), isHeld: true })
        else assert.throws(() => limit.acquire(one), { code: 'rate_limited', message: new RegExp(full) })
      }
    }),
  )
})

test('a refusal names the limit, its value, the current use and how to change it', () => {
  const limit = makeThingLimit()
  const thing = { box: '1', org: 'a' }
  limit.acquire(thing)
  limit.acquire(thing)
  assert.throws(
    () => limit.acquire(thing),
    (error: unknown) => {
      assert.ok(error instanceof Problem)
      const how_to_change = 'use fewer; the operator can change it with PER_BOX'
      assert.deepEqual(error.details, { limit: 'per_box', max: 2, current: 2, how_to_change })
      return true
    },
  )
})
