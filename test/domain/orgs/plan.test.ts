import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { isPlanName, parseLimitValue, parsePlanTerms } from '../../../src/domain/orgs/plan.ts'
import { exhaustedHours, hoursUsed, LIMITS } from '../../../src/domain/orgs/quota.ts'
import { slugFromName } from '../../../src/domain/names.ts'

const BAD_PLANS: readonly (readonly [unknown, string])[] = [
  [{ limits: { max_sandbox: 1 } }, 'limits.max_sandbox'],
  [{ limits: { max_sandboxes: '1' } }, 'limits.max_sandboxes'],
  [{ limits: { max_sandboxes: -1 } }, 'limits.max_sandboxes'],
  [{ limits: { max_sandboxes: 1.5 } }, 'limits.max_sandboxes'],
  [{ limits: { max_sandboxes: 2 ** 31 } }, 'limits.max_sandboxes'],
  [{ limits: JSON.parse('{"__proto__": 1}') }, 'limits.__proto__'],
  [{ limits: { toString: 1 } }, 'limits.toString'],
  [{ limits: [] }, 'limits'],
  [{ limits: null }, 'limits'],
  [{ prices: { vcpu_hours: 1 } }, 'prices.vcpu_hours'],
  [{ prices: { vcpu_hour_microcents: 0.5 } }, 'prices.vcpu_hour_microcents'],
  [{ prices: { vcpu_hour_microcents: null } }, 'prices.vcpu_hour_microcents'],
  [{ prices: 1 }, 'prices'],
  [{ price: {} }, 'price'],
  [[], 'the plan'],
  [null, 'the plan'],
]

test('a plan with an unknown field or an invalid value is refused by that field', () => {
  for (const [json, field] of BAD_PLANS) {
    const parsed = parsePlanTerms(json)
    assert.equal('refusal' in parsed ? parsed.refusal.field : null, field, JSON.stringify(json))
  }
})

test('every limit may be null or a whole number, and an empty plan has no limits and no prices', () => {
  for (const name of Object.keys(LIMITS))
    for (const value of [null, 0, 2 ** 31 - 1])
      assert.deepEqual(parsePlanTerms({ limits: { [name]: value } }), {
        terms: { limits: { [name]: value }, prices: null },
      })
  assert.deepEqual(parsePlanTerms({}), { terms: { limits: {}, prices: null } })
})

test("a limit's value is a whole number or unlimited, and nothing else", () => {
  assert.deepEqual(['0', '2147483647', 'unlimited'].map(parseLimitValue), [0, 2_147_483_647, null])
  for (const word of ['', '-1', '1.5', '1e3', '0x1', ' 1', '2147483648', 'Unlimited', 'null'])
    assert.equal(parseLimitValue(word), undefined, word)
})

test('plan names follow the rule of the table', () => {
  assert.ok(['a', 'team-2', 'a'.repeat(63)].every(isPlanName))
  assert.ok(!['', 'A', '-a', 'a-', 'a--b', 'a b', 'a'.repeat(64)].some(isPlanName))
})

test('a slug is derived from the letters and digits of a name, or there is none', () => {
  assert.deepEqual(['Acme, Inc.', '  A  B c ', 'x'.repeat(80), 'é', '人', 'ab'].map(slugFromName), [
    'acme-inc', 'a-b-c', 'x'.repeat(63), null, null, null,
  ]) // prettier-ignore
})

test('included hours are used up at the exact millisecond, and never on a plan with prices', () => {
  const someUse = fc.record({ hours: fc.nat(100_000), spareMs: fc.nat(1_000_000) })
  fc.assert(
    fc.property(someUse, fc.boolean(), ({ hours, spareMs }, hard_cap) => {
      const pools = { hard_cap, included_vcpu_hours: hours, included_memory_gib_hours: null }
      const wall = BigInt(hours) * 3_600_000n
      const at = (vcpu_ms: bigint) => exhaustedHours(pools, { vcpu_ms, memory_mib_ms: 10n ** 30n }).length > 0
      assert.equal(at(wall + BigInt(spareMs)), hard_cap)
      if (wall > 0n) assert.equal(at(wall - 1n), false)
    }),
  )
  assert.equal(hoursUsed('included_memory_gib_hours', { vcpu_ms: 0n, memory_mib_ms: 1024n * 5_400_000n }), 1.5)
})
