import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import {
  splitIntoDays,
  splitAtMidnights,
  halvesOf,
  DAY_MS,
  decimalSeconds,
  monthsOf,
  startOfMonth,
  startOfNextMonth,
} from '../../../src/domain/usage/metering.ts'
import {
  amountCents,
  divideForDisplay,
  toBillingUnits,
  METRIC_DEFINITIONS,
  METRICS,
  projectedCents,
  type BillingTerms,
} from '../../../src/domain/usage/pricing.ts'
import { resolveUsageRange } from '../../../src/domain/usage/usage-range.ts'

const at = (text: string): Date => new Date(text)
const instants = fc
  .integer({ min: Date.parse('2027-12-01T00:00:00Z'), max: Date.parse('2029-03-01T00:00:00Z') })
  .map((ms) => new Date(ms % 3 === 0 ? Math.floor(ms / DAY_MS) * DAY_MS : ms))
const ranges = fc.tuple(instants, instants).map(([a, b]) => (a < b ? { since: a, until: b } : { since: b, until: a }))
const FREE: BillingTerms = {
  prices: null,
  included_vcpu_hours: null,
  included_memory_gib_hours: null,
  included_disk_gib_hours: null,
  included_storage_gib: null,
}

test('whole days and parts of days cover the range without a gap or an overlap', () => {
  fc.assert(
    fc.property(ranges, ({ since, until }) => {
      const { days, parts } = splitAtMidnights({ since, until })
      const whole = { since: at(days.first), until: at(days.end) }
      const pieces = [...parts, ...(days.first < days.end ? [whole] : [])].toSorted(
        (a, b) => Number(a.since) - Number(b.since),
      )
      let reached = since
      for (const piece of pieces) {
        assert.deepEqual(piece.since, reached)
        assert.ok(piece.until > piece.since)
        reached = piece.until
      }
      assert.deepEqual(reached, until)
      for (const part of parts)
        assert.ok(Number(part.until) <= Number(at(part.day)) + DAY_MS && part.since >= at(part.day))
      const byDay = splitIntoDays({ since, until })
      assert.equal(
        byDay.reduce((sum, piece) => sum + Number(piece.until) - Number(piece.since), 0),
        Number(until) - Number(since),
      )
    }),
  )
})

test('a range is halved at a midnight, and stays whole without one', () => {
  const minutes = fc
    .integer({ min: 0, max: 3 * 24 * 60 })
    .map((minute) => new Date(Date.UTC(2028, 1, 28) + minute * 60_000))
  const short = fc.tuple(minutes, minutes).map(([a, b]) => (a < b ? { since: a, until: b } : { since: b, until: a }))
  fc.assert(
    fc.property(fc.oneof(ranges, short), (range) => {
      const [first, second, ...more] = halvesOf(range)
      assert.deepEqual(more, [])
      const days = splitIntoDays(range)
      if (second === undefined) {
        assert.ok(days.length <= 1)
        assert.deepEqual(first, range)
        return
      }
      assert.deepEqual({ since: first?.since, until: second.until }, range)
      assert.deepEqual(first?.until, second.since)
      assert.equal(Number(second.since) % DAY_MS, 0)
      const [left, right] = [second.since, second.until].map(
        (end, nth) => Number(end) - Number(halvesOf(range)[nth]?.since),
      )
      assert.ok(left !== undefined && right !== undefined && left > 0 && right > 0 && Math.abs(left - right) <= DAY_MS)
    }),
  )
})

test('months have their calendar length, including leap years and year ends', () => {
  const range = { since: at('2027-12-31T23:59:59.999Z'), until: at('2028-03-01T00:00:00.001Z') }
  assert.deepEqual(monthsOf(range), [
    { month: '2027-12', hours: 744 },
    { month: '2028-01', hours: 744 },
    { month: '2028-02', hours: 29 * 24 },
    { month: '2028-03', hours: 744 },
  ])
  assert.deepEqual(startOfMonth(at('2028-02-29T23:00:00Z')), at('2028-02-01T00:00:00Z'))
  assert.deepEqual(startOfNextMonth(at('2027-12-31T00:00:00Z')), at('2028-01-01T00:00:00Z'))
})

test('an amount is the exact price of the usage beyond the monthly allowances, rounded half up once', () => {
  const months = monthsOf({ since: at('2028-01-15T00:00:00Z'), until: at('2028-04-02T00:00:00Z') })
  const given = fc.record({
    metric: fc.constantFrom(...METRICS),
    quantities: fc.array(fc.bigInt({ min: 0n, max: 10n ** 24n }), {
      minLength: months.length,
      maxLength: months.length,
    }),
    price: fc.integer({ min: 0, max: Number.MAX_SAFE_INTEGER }),
    included: fc.option(fc.integer({ min: 0, max: 2 ** 31 - 1 })),
  })
  fc.assert(
    fc.property(given, ({ metric, quantities, price, included }) => {
      const { perUnit, price: name } = METRIC_DEFINITIONS[metric]
      const terms: BillingTerms = {
        prices: { [name]: price },
        included_vcpu_hours: included,
        included_memory_gib_hours: included,
        included_disk_gib_hours: included,
        included_storage_gib: included,
      }
      const asked = months.map((month, index) => ({ month, quantity: quantities[index] ?? 0n }))
      const cents = amountCents(metric, asked, terms)
      let billable = 0n
      for (const { month, quantity } of asked) {
        const hours = metric === 'storage' ? BigInt(month.hours) : 1n
        const beyond = quantity - BigInt(included ?? 0) * hours * perUnit
        billable += beyond > 0n ? beyond : 0n
      }
      // Asserts |cents - exact| <= 1/2, with equality only if it was rounded up. Both sides are multiplied by the
      // denominator.
      const denominator = perUnit * 1_000_000n
      const difference = 2n * (cents * denominator - billable * BigInt(price))
      assert.ok(difference > -denominator && difference <= denominator)
      assert.equal(amountCents(metric, asked, { ...terms, prices: null }), 0n)
    }),
  )
})

test('amounts equal examples calculated by hand', () => {
  const [month] = monthsOf({ since: at('2028-02-01T00:00:00Z'), until: at('2028-02-02T00:00:00Z') })
  assert.ok(month)
  const terms = {
    ...FREE,
    prices: { vcpu_hour_microcents: 4_000_000, storage_gib_hour_microcents: 500 },
    included_vcpu_hours: 10,
    included_storage_gib: 2,
  }
  const hours = (count: bigint): bigint => count * 3_600_000n
  assert.equal(amountCents('vcpu', [{ month, quantity: hours(10n) }], terms), 0n)
  assert.equal(amountCents('vcpu', [{ month, quantity: hours(13n) }], terms), 12n)
  assert.equal(amountCents('vcpu', [{ month, quantity: hours(10n) + 450_000n }], terms), 1n, 'half a cent is a cent')
  assert.equal(amountCents('vcpu', [{ month, quantity: hours(10n) + 449_999n }], terms), 0n)
  const gibMonth = 1024n ** 3n * hours(29n * 24n)
  assert.equal(amountCents('storage', [{ month, quantity: 2n * gibMonth }], terms), 0n)
  assert.equal(amountCents('storage', [{ month, quantity: 102n * gibMonth }], terms), 35n) // 100 * 696 * 0.0005
  assert.equal(toBillingUnits('memory', 1536n * 3_600_000n), 1.5)
})

test('a projection is never below the total, and equals it if the period is over or has not begun', () => {
  const period = { since: at('2028-02-01T00:00:00Z'), until: at('2028-03-01T00:00:00Z') }
  assert.equal(projectedCents(100n, period, at('2028-02-15T12:00:00Z')), 200n)
  assert.equal(projectedCents(100n, period, period.since), 100n)
  assert.equal(projectedCents(100n, period, period.until), 100n)
  fc.assert(
    fc.property(fc.bigInt({ min: 0n, max: 10n ** 15n }), ranges, instants, (total, range, now) => {
      assert.ok(projectedCents(total, range, now) >= total)
    }),
  )
})

test('a quotient for display has the precision of a double, however large numerator and denominator are', () => {
  fc.assert(
    fc.property(
      fc.bigInt({ min: 0n, max: 10n ** 30n }),
      fc.bigInt({ min: 1n, max: 10n ** 16n }),
      (dividend, divisor) => {
        const exact = Number((dividend * 10n ** 30n) / divisor) / 1e30
        assert.ok(Math.abs(divideForDisplay(dividend, divisor) - exact) <= exact * 2 ** -50 + Number.EPSILON)
      },
    ),
  )
})

test('milliseconds are converted to seconds without rounding', () => {
  for (const [ms, seconds] of [
    ['0', '0.000'],
    ['7', '0.007'],
    ['1000', '1.000'],
    ['86400000', '86400.000'],
    ['9007199254740993', '9007199254740.993'],
  ] as const)
    assert.equal(decimalSeconds(ms), seconds)
})

test('a usage range defaults to the current month, has at most 366 days, and is refused by field', () => {
  const now = at('2028-02-29T12:00:00Z')
  const choose = (since: string | null, until: string | null) => {
    const chosen = resolveUsageRange(
      { since: since === null ? null : at(since), until: until === null ? null : at(until) },
      now,
    )
    if (chosen.kind === 'refused') return chosen.refusal.field
    return `${chosen.range.since.toISOString()} ${chosen.range.until.toISOString()}`
  }
  assert.equal(choose(null, null), '2028-02-01T00:00:00.000Z 2028-03-01T00:00:00.000Z')
  assert.equal(choose('2028-02-10T00:00:00Z', null), '2028-02-10T00:00:00.000Z 2028-02-29T12:00:00.000Z')
  assert.equal(choose(null, '2028-01-01T00:00:00Z'), '2027-12-01T00:00:00.000Z 2028-01-01T00:00:00.000Z')
  assert.equal(
    choose('2027-02-28T00:00:00Z', '2028-02-29T00:00:00Z'),
    '2027-02-28T00:00:00.000Z 2028-02-29T00:00:00.000Z',
  )
  assert.equal(choose('2027-02-28T00:00:00Z', '2028-02-29T00:00:00.001Z'), 'query.since')
  assert.equal(choose('2028-02-10T00:00:00Z', '2028-02-10T00:00:00Z'), 'query.until')
  assert.equal(choose('2028-03-10T00:00:00Z', null), 'query.since')
})
