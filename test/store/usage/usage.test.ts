import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import fc from 'fast-check'
import { getSandboxBreakdown } from '../../../src/control/usage/read-usage.ts'
import type { Caller } from '../../../src/domain/orgs/caller.ts'
import type { SandboxId } from '../../../src/domain/ids.ts'
import {
  DAY_MS,
  dayOf,
  decimalSeconds,
  halvesOf,
  startOfMonth,
  startOfNextMonth,
  type TimeRange,
} from '../../../src/domain/usage/metering.ts'
import { makeRollUpUsageLoop } from '../../../src/loops/roll-up-usage.ts'
import type { Database } from '../../../src/store/postgres/database.ts'
import * as rollUps from '../../../src/store/usage/roll-up.ts'
import {
  sandboxDays,
  renderSandboxDays,
  type DayPosition,
  type SandboxDay,
} from '../../../src/store/usage/sandbox-days.ts'
import * as usage from '../../../src/store/usage/usage.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addOrg } from '../../support/orgs.ts'
import { clearLedger, insertRuns, insertSandboxes, type LedgerRun } from '../../support/usage.ts'

// The database's sums are compared with a plain sum over all runs in JavaScript.

const never = new AbortController().signal
const NOW = new Date('2028-03-02T09:30:00.123Z')
const LIMIT = 100_000

let control: TestControl
let stranger: Caller
let sandboxes: readonly SandboxId[]
before(async () => {
  control = await makeTestControl()
  stranger = await addOrg(control.deps, 'stranger')
  sandboxes = await insertSandboxes(control, control.caller.org_id, ['a', 'b', 'c', 'd'])
})
after(() => control.close())

/** Times around critical midnights: a leap day, the end of a year and of a month, the change to daylight saving time. */
const midnights = ['2028-02-28', '2028-02-29', '2028-03-01', '2028-01-01', '2027-12-31', '2027-03-28', '2027-11-07']
const instants = fc
  .tuple(
    fc.constantFrom(...midnights.map((day) => Date.parse(`${day}T00:00:00Z`))),
    fc.oneof(fc.constantFrom(0, 1, -1, DAY_MS, DAY_MS - 1), fc.integer({ min: -2 * DAY_MS, max: 2 * DAY_MS })),
  )
  .map(([midnight, offset]) => new Date(Math.min(midnight + offset, NOW.getTime())))
const lengths = fc.oneof(
  fc.constantFrom(0, 1, DAY_MS, DAY_MS - 1, DAY_MS + 1, 2 * DAY_MS),
  fc.integer({ min: 0, max: 5 * DAY_MS }),
)
type Drawn = Omit<LedgerRun, 'sandbox_id'> & { readonly sandbox: number }
const runs: fc.Arbitrary<Drawn> = fc
  .record({
    sandbox: fc.nat({ max: 3 }),
    vcpus: fc.integer({ min: 1, max: 64 }),
    memory_mib: fc.integer({ min: 128, max: 262_144 }),
    disk_mib: fc.integer({ min: 0, max: 2_000_000_000 }),
    start: instants,
    length: lengths,
  })
  .map(({ start, length, ...rest }) => ({
    ...rest,
    started_at: start,
    ended_at: new Date(start.getTime() + length),
  }))
const openRuns = fc.uniqueArray(
  fc.record({ run: runs, isStarted: fc.boolean() }).map(({ run, isStarted }): Drawn => ({
    ...run,
    started_at: isStarted ? run.started_at : null,
    ended_at: null,
  })),
  { selector: ({ sandbox }) => sandbox, maxLength: 4 },
)
const ledgers = fc.record({
  rolledUp: fc.array(runs, { maxLength: 12 }),
  ended: fc.array(runs, { maxLength: 4 }),
  open: openRuns,
})
const ranges = fc
  .tuple(instants, instants)
  .map(([a, b]): TimeRange => (a < b ? { since: a, until: b } : { since: b, until: a }))

async function lay(
  ledger: typeof ledgers extends fc.Arbitrary<infer Ledger> ? Ledger : never,
): Promise<readonly LedgerRun[]> {
  const { deps, caller } = control
  const named = (drawn: readonly Drawn[]): readonly LedgerRun[] =>
    drawn.map(({ sandbox, ...run }) => ({ ...run, sandbox_id: sandboxes[sandbox] ?? assert.fail('no such sandbox') }))
  await clearLedger(control)
  await insertRuns(control, caller.org_id, named(ledger.rolledUp))
  await makeRollUpUsageLoop({ db: deps.db, clock: { ...deps.clock, now: () => NOW } }).run(never)
  await insertRuns(control, caller.org_id, named([...ledger.ended, ...ledger.open]))
  return named([...ledger.rolledUp, ...ledger.ended, ...ledger.open])
}

/** The usage by sandbox and day: from `<sandbox> <day>` to `<vcpu> <memory> <disk>`. */
type UsageByDay = ReadonlyMap<string, string>

function usageByDay(rows: readonly SandboxDay[]): UsageByDay {
  return new Map(
    rows.map((row) => [`${row.sandbox_id} ${row.day}`, `${row.vcpu_ms} ${row.memory_mib_ms} ${row.disk_mib_ms}`]),
  )
}

/** The expected usage in a range, computed from the runs alone. */
function expectedOf(ledger: readonly LedgerRun[], { since, until }: TimeRange): UsageByDay {
  const sums = new Map<string, readonly [bigint, bigint, bigint]>()
  for (const { sandbox_id, vcpus, memory_mib, disk_mib, started_at, ended_at } of ledger) {
    if (started_at === null) continue
    const endMs = Math.min((ended_at ?? NOW).getTime(), until.getTime())
    for (let fromMs = Math.max(started_at.getTime(), since.getTime()); fromMs < endMs;) {
      const toMs = Math.min(endMs, (Math.floor(fromMs / DAY_MS) + 1) * DAY_MS)
      const ms = BigInt(toMs - fromMs)
      const key = `${sandbox_id} ${dayOf(new Date(fromMs))}`
      const [vcpu, memory, disk] = sums.get(key) ?? [0n, 0n, 0n]
      sums.set(key, [vcpu + BigInt(vcpus) * ms, memory + BigInt(memory_mib) * ms, disk + BigInt(disk_mib) * ms])
      fromMs = toMs
    }
  }
  return new Map([...sums].map(([key, amounts]) => [key, amounts.join(' ')]))
}

/** All rows of a range, in pages of `limit`. */
async function read(range: TimeRange, limit = LIMIT): Promise<readonly SandboxDay[]> {
  const { deps, caller } = control
  const { org_id } = caller
  const all: SandboxDay[] = []
  let after: DayPosition | null = null
  do {
    const page = await deps.db.asOrg(org_id, (q) => sandboxDays(q, { org_id, range, now: NOW }, { after, limit }))
    assert.ok(page.rows.length <= limit)
    all.push(...page.rows)
    after = page.next
  } while (after !== null)
  return all
}

/** The same as JSON text. */
async function readRendered(range: TimeRange, limit: number): Promise<readonly unknown[]> {
  const { deps, caller } = control
  const { org_id } = caller
  const items: string[] = []
  let after: DayPosition | null = null
  do {
    const page = await deps.db.asOrg(org_id, (q) => renderSandboxDays(q, { org_id, range, now: NOW }, { after, limit }))
    const rows: readonly { readonly sandbox_id: SandboxId }[] = JSON.parse(`[${page.items.join(',')}]`)
    assert.equal(page.count, rows.length)
    const ids = page.sandboxes.map(({ id }) => id)
    assert.deepEqual(ids, [...new Set(rows.map(({ sandbox_id }) => sandbox_id))].toSorted())
    items.push(...page.items)
    after = page.next
  } while (after !== null)
  return JSON.parse(`[${items.join(',')}]`)
}

/** The rows of a report without pages, and how many of its pages were read at once. */
async function readReport(
  range: TimeRange,
  isAmongOthers: () => boolean,
): Promise<{ readonly rows: readonly unknown[]; readonly atOnce: number }> {
  const { deps, caller } = control
  let [reading, atOnce] = [0, 0]
  const db: Database = {
    ...deps.db,
    isAmongOthers,
    asOrg: async (org, fn) => {
      reading += 1
      atOnce = Math.max(atOnce, reading)
      return deps.db.asOrg(org, fn).finally(() => (reading -= 1))
    },
  }
  const depsNow = { ...deps, db, clock: { ...deps.clock, now: () => NOW } }
  const { items, nextCursor } = await getSandboxBreakdown(depsNow, caller, { ...range, page: null })
  assert.equal(nextCursor, null)
  return { rows: JSON.parse(`[${items.join(',')}]`), atOnce }
}

function sumOf(rows: readonly SandboxDay[]): readonly bigint[] {
  const columns = ['vcpu_ms', 'memory_mib_ms', 'disk_mib_ms'] as const
  return columns.map((column) => rows.reduce((sum, row) => sum + BigInt(row[column]), 0n))
}

test('the usage of each sandbox and day is the exact sum of its runs in any range, whether rolled up, ended or open', async () => {
  const { deps, caller } = control
  const { org_id } = caller
  await fc.assert(
    fc.asyncProperty(ledgers, fc.array(ranges, { minLength: 1, maxLength: 4 }), async (drawn, drawnRanges) => {
      const ledger = await lay(drawn)
      for (const range of drawnRanges) {
        const rows = await read(range)
        assert.deepEqual(usageByDay(rows), expectedOf(ledger, range), JSON.stringify(range))
        const days = await deps.db.asOrg(org_id, (q) => usage.orgDays(q, { org_id, range, now: NOW }))
        for (const { day, ...amounts } of days)
          assert.deepEqual(Object.values(amounts), sumOf(rows.filter((row) => row.day === day)), day)
        assert.deepEqual(
          days.map(({ day }) => day),
          [...new Set(rows.map(({ day }) => day))].toSorted(),
        )
      }
    }),
    { numRuns: 60 },
  )
})

test('the parts of a range add up to the range', async () => {
  await fc.assert(
    fc.asyncProperty(
      ledgers,
      fc.uniqueArray(instants, { selector: Number, minLength: 3, maxLength: 8 }),
      async (drawn, cuts) => {
        await lay(drawn)
        const [first, ...rest] = cuts.toSorted((a, b) => a.getTime() - b.getTime())
        assert.ok(first !== undefined)
        const pieces: SandboxDay[] = []
        let since = first
        for (const until of rest) {
          pieces.push(...(await read({ since, until })))
          since = until
        }
        assert.deepEqual(sumOf(pieces), sumOf(await read({ since: first, until: since })))
      },
    ),
    { numRuns: 60 },
  )
})

test('pages of any size, their text, and a report without pages have each row once, by day and sandbox', async () => {
  await fc.assert(
    fc.asyncProperty(ledgers, ranges, fc.integer({ min: 1, max: 9 }), async (drawn, range, limit) => {
      await lay(drawn)
      const rows = await read(range)
      const keys = rows.map(({ day, sandbox_id }) => `${day} ${sandbox_id}`)
      assert.deepEqual(keys, keys.toSorted())
      assert.deepEqual(await read(range, limit), rows)
      const rendered = rows.map(({ sandbox_id, day, vcpu_ms, memory_mib_ms, disk_mib_ms }) => ({
        sandbox_id,
        day: `${day}T00:00:00Z`,
        vcpu_seconds: Number(decimalSeconds(vcpu_ms)),
        mem_mib_seconds: Number(decimalSeconds(memory_mib_ms)),
        disk_mib_seconds: Number(decimalSeconds(disk_mib_ms)),
      }))
      assert.deepEqual(await readRendered(range, limit), rendered)
      if (range.since >= range.until) return
      for (const isAmongOthers of [false, true]) {
        const report = await readReport(range, () => isAmongOthers)
        assert.deepEqual(report.rows, rendered)
        assert.equal(report.atOnce, isAmongOthers ? 1 : halvesOf(range).length)
      }
    }),
    { numRuns: 40 },
  )
})

test('the text of a page has exact decimals, with few digits and beyond 2^53', async () => {
  const since = new Date('2028-02-01T00:00:00Z')
  for (const [length, decimals] of [
    [1, '0.001 0.512 1999999.999'],
    [500_000, '500 256000 999999999500'],
    [DAY_MS - 1, '86399.999 44236799.488 172799997913600.001'],
  ] as const) {
    const started_at = since
    const run = { sandbox: 0, vcpus: 1, memory_mib: 512, disk_mib: 1_999_999_999, started_at }
    await lay({ rolledUp: [{ ...run, ended_at: new Date(since.getTime() + length) }], ended: [], open: [] })
    const range = { since, until: new Date(since.getTime() + DAY_MS) }
    const { org_id } = control.caller
    const { items } = await control.deps.db.asOrg(org_id, (q) =>
      renderSandboxDays(q, { org_id, range, now: NOW }, { after: null, limit: 1 }),
    )
    assert.equal([...(items[0] ?? '').matchAll(/_seconds":([^,}]+)/g)].map(([, digits]) => digits).join(' '), decimals)
  }
})

test('a run is rolled up once, however many passes run at the same time; another pass changes nothing', async () => {
  const { deps, caller } = control
  await clearLedger(control)
  const start = Date.parse('2028-02-28T20:00:00Z')
  const ledger = Array.from({ length: 400 }, (_, n): LedgerRun => {
    const sandbox_id = sandboxes[n % 4] ?? assert.fail('no such sandbox')
    const from = start + n * 1_000
    return {
      sandbox_id,
      vcpus: 2,
      memory_mib: 512,
      disk_mib: 100,
      started_at: new Date(from),
      ended_at: new Date(from + (n % 7) * DAY_MS),
    }
  })
  await insertRuns(control, caller.org_id, ledger)
  const range = { since: new Date('2028-02-01T00:00:00Z'), until: new Date('2028-04-01T00:00:00Z') }
  const before = usageByDay(await read(range))
  const counts = await Promise.all(
    Array.from({ length: 12 }, () => deps.db.transaction('system', (tx) => rollUps.rollUp(tx, NOW, 70))),
  )
  assert.equal(
    counts.reduce((sum, count) => sum + count, 0),
    400,
  )
  assert.equal(await deps.db.transaction('system', (tx) => rollUps.rollUp(tx, NOW, 70)), 0)
  assert.deepEqual(usageByDay(await read(range)), before)
})

test('a reader during a roll-up counts each run exactly once', async () => {
  const { deps, caller } = control
  await clearLedger(control)
  const at = Date.parse('2028-02-29T12:00:00Z')
  const ledger = Array.from({ length: 600 }, (_, n): LedgerRun => {
    const sandbox_id = sandboxes[n % 4] ?? assert.fail('no such sandbox')
    return {
      sandbox_id,
      vcpus: 1,
      memory_mib: 1,
      disk_mib: 1,
      started_at: new Date(at + n),
      ended_at: new Date(at + n + 1_000),
    }
  })
  await insertRuns(control, caller.org_id, ledger)
  const range = { since: new Date(at + 300), until: new Date(at + 1_200) }
  const expected = expectedOf(ledger, range)
  let isDone = false
  const reading = (async () => {
    while (!isDone) assert.deepEqual(usageByDay(await read(range)), expected)
  })()
  while ((await deps.db.transaction('system', (tx) => rollUps.rollUp(tx, NOW, 20))) > 0);
  isDone = true
  await reading
})

test('the month’s totals are the sum of the month so far, for one organization and for all with hard limits', async () => {
  const { deps, caller } = control
  const { org_id } = caller
  await fc.assert(
    fc.asyncProperty(ledgers, async (drawn) => {
      const ledger = await lay(drawn)
      const totals = await deps.db.asOrg(org_id, (q) => usage.monthTotals(q, org_id, NOW))
      const month = { since: startOfMonth(NOW), until: startOfNextMonth(NOW) }
      const expected = [0, 1, 2].map((at) =>
        [...expectedOf(ledger, month).values()].reduce((sum, text) => sum + BigInt(text.split(' ')[at] ?? 0), 0n),
      )
      assert.deepEqual(Object.values(totals), expected)
      await deps.db.asSystem((q) =>
        q.query({
          text: `UPDATE orgs SET quota_overrides = '{"included_vcpu_hours": 5}' WHERE id = $1`,
          values: [org_id],
        }),
      )
      const pools = await deps.db.asSystem((q) => usage.hardLimitedMonthTotals(q, NOW))
      const found = pools.find((pool) => pool.org_id === org_id)
      assert.deepEqual([found?.vcpu_ms ?? 0n, found?.memory_mib_ms ?? 0n, found?.disk_mib_ms ?? 0n], expected)
    }),
    { numRuns: 25 },
  )
})

test('another organization reads no usage', async () => {
  const { deps, caller } = control
  await lay({ rolledUp: fc.sample(runs, 10), ended: fc.sample(runs, 3), open: [] })
  const range = { since: new Date('2027-01-01T00:00:00Z'), until: NOW }
  for (const org_id of [caller.org_id, stranger.org_id]) {
    const rows = await deps.db.asOrg(stranger.org_id, (q) =>
      sandboxDays(q, { org_id, range, now: NOW }, { after: null, limit: LIMIT }),
    )
    assert.deepEqual(rows, { rows: [], next: null })
  }
})
