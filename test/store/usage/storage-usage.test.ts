import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import fc from 'fast-check'
import { getStorageBreakdown, getUsage } from '../../../src/control/usage/read-usage.ts'
import { asId, type VolumeId } from '../../../src/domain/ids.ts'
import { DAY_MS, dayOf, type TimeRange } from '../../../src/domain/usage/metering.ts'
import * as storageUsage from '../../../src/store/usage/storage-usage.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { clearLedger } from '../../support/usage.ts'

const NOW = new Date('2028-03-02T09:30:00.123Z')
const LIMIT = 10_000
let control: TestControl
let volumes: readonly VolumeId[]
before(async () => {
  control = await makeTestControl()
  volumes = ['first', 'second', 'third'].map(() => asId<VolumeId>(control.deps.uuids.next()))
})
after(() => control.close())

/** The sizes of a volume over time. Each lasts for `afterMs`, except for the last one, which lasts until now. */
type Held = {
  readonly volume: number
  readonly changes: readonly { readonly afterMs: number; readonly bytes: number }[]
}
const histories: fc.Arbitrary<readonly Held[]> = fc.uniqueArray(
  fc.record({
    volume: fc.nat({ max: 2 }),
    changes: fc.array(
      fc.record({
        afterMs: fc.oneof(fc.constantFrom(1, DAY_MS, 2 * DAY_MS), fc.integer({ min: 1, max: DAY_MS })),
        bytes: fc.oneof(fc.constant(0), fc.integer({ min: 1, max: 2 ** 50 })),
      }),
      { minLength: 1, maxLength: 8 },
    ),
  }),
  { selector: ({ volume }) => volume, maxLength: 3 },
)
const START_MS = Date.parse('2028-02-27T18:00:00Z')
const instants = fc.integer({ min: START_MS - DAY_MS, max: NOW.getTime() }).map((ms) => new Date(ms))

type Interval = {
  readonly volume_id: VolumeId
  readonly from_at: Date
  readonly to_at: Date
  readonly used_bytes: number
}

/**
 * Writes a history into the database as intervals that are split at midnight. Resolves with the intervals. Volume 2 is
 * deleted, so its last size does not continue until now.
 */
async function lay(history: readonly Held[]): Promise<readonly Interval[]> {
  const { deps, caller } = control
  const accrued: Interval[] = []
  const live: Interval[] = []
  for (const { volume, changes } of history) {
    const volume_id = volumes[volume] ?? assert.fail('no such volume')
    let fromMs = START_MS
    for (const [index, { afterMs, bytes }] of changes.entries()) {
      const isLast = index === changes.length - 1
      const toMs = Math.min(fromMs + afterMs, NOW.getTime())
      if (isLast && volume !== 2) live.push({ volume_id, from_at: new Date(fromMs), to_at: NOW, used_bytes: bytes })
      else accrued.push(...piecesOf({ volume_id, from_at: new Date(fromMs), to_at: new Date(toMs), used_bytes: bytes }))
      fromMs = toMs
    }
  }
  await clearLedger(control)
  await deps.db.asSystem(async (q) => {
    await q.query({ text: `DELETE FROM volumes WHERE kind = 'managed'` })
    await q.query({
      text: `INSERT INTO storage_accruals SELECT $1, volume_id, from_at, to_at, used_bytes
             FROM json_to_recordset($2) AS r(volume_id uuid, from_at timestamptz, to_at timestamptz, used_bytes bigint)`,
      values: [caller.org_id, JSON.stringify(accrued)],
    })
    await q.query({
      text: `INSERT INTO volumes (id, org_id, kind, name, status, created_at, updated_at, used_bytes, accrued_until)
             SELECT volume_id, $1, 'managed', 'v' || right(volume_id::text, 12), 'active', now(), now(), used_bytes, from_at
             FROM json_to_recordset($2) AS r(volume_id uuid, from_at timestamptz, used_bytes bigint)`,
      values: [caller.org_id, JSON.stringify(live)],
    })
  })
  return [...accrued, ...live.flatMap(piecesOf)]
}

function piecesOf({ volume_id, from_at, to_at, used_bytes }: Interval): readonly Interval[] {
  const pieces: Interval[] = []
  for (let fromMs = from_at.getTime(); fromMs < to_at.getTime();) {
    const toMs = Math.min(to_at.getTime(), (Math.floor(fromMs / DAY_MS) + 1) * DAY_MS)
    pieces.push({ volume_id, from_at: new Date(fromMs), to_at: new Date(toMs), used_bytes })
    fromMs = toMs
  }
  return pieces
}

function expectedOf(intervals: readonly Interval[], { since, until }: TimeRange): ReadonlyMap<string, bigint> {
  const sums = new Map<string, bigint>()
  for (const { volume_id, from_at, to_at, used_bytes } of intervals) {
    const ms = Math.min(to_at.getTime(), until.getTime()) - Math.max(from_at.getTime(), since.getTime())
    if (ms <= 0 || used_bytes === 0) continue
    const key = `${dayOf(from_at)} ${volume_id}`
    sums.set(key, (sums.get(key) ?? 0n) + BigInt(used_bytes) * BigInt(ms))
  }
  return sums
}

async function read(range: TimeRange): Promise<readonly storageUsage.VolumeDay[]> {
  const { org_id } = control.caller
  return control.deps.db.asOrg(org_id, (q) => storageUsage.volumeDays(q, { org_id, range, now: NOW }, LIMIT))
}

test('the usage of each volume and day is the exact sum of its intervals, in any range and for deleted volumes too', async () => {
  await fc.assert(
    fc.asyncProperty(histories, instants, instants, async (history, one, other) => {
      const intervals = await lay(history)
      const range = one < other ? { since: one, until: other } : { since: other, until: one }
      if (range.since.getTime() === range.until.getTime()) return
      const rows = await read(range)
      const found = rows.map((row) => [`${row.day} ${row.volume_id}`, row.until_byte_ms - row.before_byte_ms] as const)
      const expected = expectedOf(intervals, range)
      assert.deepEqual(new Map(found), expected)
      const { org_id } = control.caller
      const days = await control.deps.db.asOrg(org_id, (q) => storageUsage.storageDays(q, { org_id, range, now: NOW }))
      const sum = (values: readonly bigint[]): bigint => values.reduce((total, value) => total + value, 0n)
      assert.equal(sum(days.map(({ byte_ms }) => byte_ms)), sum([...expected.values()]))
    }),
    { numRuns: 50 },
  )
})

test('whole MiB-seconds of the parts of a range add up to those of the range, day by day', async () => {
  const deps = { db: control.deps.db, clock: { ...control.deps.clock, now: () => NOW } }
  const sumsOf = async (ranges: readonly TimeRange[]): Promise<ReadonlyMap<string, number>> => {
    const sums = new Map<string, number>()
    for (const range of ranges)
      for (const { volume_id, day, mib_seconds } of (await getStorageBreakdown(deps, control.caller, range)).rows) {
        assert.ok(Number.isInteger(mib_seconds) && mib_seconds >= 0)
        sums.set(`${volume_id} ${day}`, (sums.get(`${volume_id} ${day}`) ?? 0) + mib_seconds)
      }
    return sums
  }
  await fc.assert(
    fc.asyncProperty(
      histories,
      fc.uniqueArray(instants, { selector: Number, minLength: 3, maxLength: 8 }),
      async (history, cuts) => {
        await lay(history)
        const sorted = cuts.toSorted((a, b) => a.getTime() - b.getTime())
        const pieces = sorted.slice(1).map((until, index) => ({ since: sorted[index] ?? until, until }))
        const [first, last] = [sorted[0], sorted.at(-1)]
        assert.ok(first !== undefined && last !== undefined)
        const whole = await sumsOf([{ since: first, until: last }])
        const split = await sumsOf(pieces)
        for (const [key, mibSeconds] of split) assert.equal(whole.get(key) ?? 0, mibSeconds, key)
        for (const [key, mibSeconds] of whole) assert.equal(split.get(key) ?? 0, mibSeconds, key)
      },
    ),
    { numRuns: 40 },
  )
})

test('a deleted volume keeps its rows and loses its name; the current size of the others is reported', async () => {
  await lay([
    { volume: 0, changes: [{ afterMs: DAY_MS, bytes: 2 ** 30 }] },
    { volume: 2, changes: [{ afterMs: DAY_MS, bytes: 2 ** 31 }] },
  ])
  const deps = { db: control.deps.db, clock: { ...control.deps.clock, now: () => NOW } }
  const asked = { since: new Date('2028-02-01T00:00:00Z'), until: NOW }
  const { rows, volumes: names } = await getStorageBreakdown(deps, control.caller, asked)
  assert.ok(rows.some(({ volume_id }) => volume_id === volumes[2]))
  assert.deepEqual(
    names.map(({ id }) => id),
    [volumes[0]],
  )
  const summary = await getUsage(deps, control.caller, asked)
  assert.equal(summary.storage_gib, 1)
  const storage = summary.line_items.find(({ name }) => name === 'Storage')
  const expected = 48 + (NOW.getTime() - START_MS) / 3_600_000
  assert.ok(Math.abs((storage?.quantity ?? 0) - expected) < 1e-9, JSON.stringify(storage))
})
