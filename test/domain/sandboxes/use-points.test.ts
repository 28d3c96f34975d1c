import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import {
  levelFor,
  mergeIntoSteps,
  mergeUse,
  stepFor,
  USE_LEVELS,
  type UsePoint,
} from '../../../src/domain/sandboxes/use-points.ts'
import { sortByUse, sumUse } from '../../../src/domain/sandboxes/use-sums.ts'

const HOUR_MS = 3_600_000
const count = fc.integer({ min: 0, max: 1_000_000 })
const optional = fc.option(count, { nil: null })
const aPoint: fc.Arbitrary<UsePoint> = fc.record({
  atMs: count,
  coveredMs: fc.integer({ min: 1, max: 60_000 }),
  cpuMs: count,
  memoryBytes: count,
  memoryMaxBytes: count,
  processes: optional,
  diskBytes: optional,
  receivedBytes: optional,
  sentBytes: optional,
})

test('points merge to the same whole in any grouping', () => {
  fc.assert(
    fc.property(aPoint, aPoint, aPoint, (a, b, c) => {
      const left = mergeUse(0, mergeUse(0, a, b), c)
      const right = mergeUse(0, a, mergeUse(0, b, c))
      assert.ok(Math.abs(left.memoryBytes - right.memoryBytes) < 1e-3)
      assert.deepEqual({ ...left, memoryBytes: 0 }, { ...right, memoryBytes: 0 })
    }),
  )
})

test('steps begin at multiples of their length, and lose no time and no bytes', () => {
  fc.assert(
    fc.property(fc.array(aPoint, { maxLength: 50 }), fc.integer({ min: 1, max: 100_000 }), (points, stepMs) => {
      const sorted = points.toSorted((a, b) => a.atMs - b.atMs)
      const steps = mergeIntoSteps(sorted, stepMs)
      const total = (of: readonly UsePoint[], value: (point: UsePoint) => number): number =>
        of.reduce((sum, point) => sum + value(point), 0)
      assert.ok(steps.every(({ atMs }) => atMs % stepMs === 0))
      assert.equal(new Set(steps.map(({ atMs }) => atMs)).size, steps.length)
      for (const value of [({ coveredMs }: UsePoint) => coveredMs, ({ sentBytes }: UsePoint) => sentBytes ?? 0])
        assert.equal(total(steps, value), total(sorted, value))
    }),
  )
})

test('a request without a step gets at most 400 points, from the finest level that has them', () => {
  const range = (hours: number): { sinceMs: number; untilMs: number } => ({ sinceMs: 0, untilMs: hours * HOUR_MS })
  assert.deepEqual(
    [0.1, 1, 24, 24 * 31, 24 * 366].map((hours) => stepFor(range(hours))),
    [1, 10, 300, 14_400, 86_400],
  )
  const now = 100 * 24 * HOUR_MS
  assert.deepEqual(
    [0.5, 2, 25, 24 * 40].map((hours) => levelFor(now - hours * HOUR_MS, now)),
    [USE_LEVELS[0], USE_LEVELS[1], USE_LEVELS[2], USE_LEVELS[2]],
  )
})

test('sums count every sandbox, and use only of those that were measured', () => {
  const use = { atMs: 0, coveredMs: 2_000, cpuMs: 1_000, memoryBytes: 10, memoryMaxBytes: 10 }
  const rest = { processes: 3, diskBytes: null, receivedBytes: 100, sentBytes: null }
  const idle = { vcpus: 1, memory_mib: 1, use: null }
  const busy = { vcpus: 2, memory_mib: 1, use: { ...use, ...rest } }
  assert.deepEqual(sumUse([idle, busy]), {
    running: 2,
    measured: 1,
    vcpus: 3,
    used_vcpus: 0.5,
    memory_bytes: 2_097_152,
    used_memory_bytes: 10,
    disk_used_bytes: 0,
    received_bytes_per_sec: 50,
    sent_bytes_per_sec: 0,
  })
  assert.deepEqual(sortByUse([idle, busy], 'network'), [busy, idle])
})
