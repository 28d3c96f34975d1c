import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import fc from 'fast-check'
import { getSandboxBreakdown, getStorageBreakdown, getUsage } from '../../../src/control/usage/read-usage.ts'
import { asId, type SandboxId, type VolumeId } from '../../../src/domain/ids.ts'
import { Problem } from '../../../src/domain/problem.ts'
import { DAY_MS, splitAtMidnights, startOfDay, type TimeRange } from '../../../src/domain/usage/metering.ts'
import type { Loop } from '../../../src/loops/loop.ts'
import { makePruneExpiredLoop } from '../../../src/loops/prune-expired.ts'
import { makeRollUpUsageLoop } from '../../../src/loops/roll-up-usage.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { clearLedger, insertRuns, insertSandboxes, type LedgerRun } from '../../support/usage.ts'

// Reports before and after pruning, over ledgers of eight days.

const never = new AbortController().signal
const NOW = new Date('2028-03-02T09:30:00.123Z')
const START_MS = Date.parse('2028-02-23T00:00:00Z')

let control: TestControl
let volume_id: VolumeId
before(async () => {
  control = await makeTestControl()
  volume_id = asId<VolumeId>(control.deps.uuids.next())
})
after(() => control.close())

function depsNow() {
  return { ...control.deps, clock: { ...control.deps.clock, now: () => NOW } }
}

const instants = fc
  .oneof(
    fc.integer({ min: START_MS, max: NOW.getTime() }),
    fc.integer({ min: 0, max: 8 }).map((days) => START_MS + days * DAY_MS),
  )
  .map((ms) => new Date(ms))
const runs = fc.record({
  sandbox: fc.nat({ max: 2 }),
  vcpus: fc.integer({ min: 1, max: 8 }),
  start: instants,
  length: fc.oneof(fc.constantFrom(1, DAY_MS, 2 * DAY_MS), fc.integer({ min: 1, max: 4 * DAY_MS })),
  isRolledUp: fc.boolean(),
  isEnded: fc.boolean(),
})
const holdings = fc.array(fc.integer({ min: 0, max: 2 ** 40 }), { minLength: 8, maxLength: 8 })
const ranges = fc
  .tuple(instants, instants)
  .filter(([one, other]) => one.getTime() !== other.getTime())
  .map(([one, other]): TimeRange => (one < other ? { since: one, until: other } : { since: other, until: one }))
const kept = fc.record({ runs: fc.integer({ min: 0, max: 8 }), usage: fc.integer({ min: 0, max: 8 }) })

type Ledger = {
  readonly runs: readonly (typeof runs extends fc.Arbitrary<infer Run> ? Run : never)[]
  readonly bytes: readonly number[]
}

/** Inserts runs of deleted sandboxes, of which some are rolled up, and the intervals of a volume. */
async function lay({ runs: drawn, bytes }: Ledger): Promise<void> {
  const { deps, caller } = control
  await clearLedger(control)
  const names = ['a', 'b', 'c']
  const sandboxes = await insertSandboxes(control, caller.org_id, names)
  await deps.db.asSystem((q) =>
    q.query({ text: `UPDATE sandboxes SET visible_until = '2028-02-29' WHERE visible_until IS NULL` }),
  )
  const rowOf = (run: Ledger['runs'][number]): LedgerRun => ({
    sandbox_id: sandboxes[run.sandbox] ?? assert.fail('no such sandbox'),
    vcpus: run.vcpus,
    memory_mib: 512,
    disk_mib: 1_024,
    started_at: run.start,
    ended_at: new Date(Math.min(run.start.getTime() + run.length, NOW.getTime())),
  })
  const isOpen = drawn.map(
    (run, index) => !run.isEnded && drawn.findIndex((one) => !one.isEnded && one.sandbox === run.sandbox) === index,
  )
  await insertRuns(control, caller.org_id, drawn.filter((run, index) => run.isRolledUp && isOpen[index] !== true).map(rowOf)) // prettier-ignore
  await makeRollUpUsageLoop(depsNow()).run(never)
  await insertRuns(control, caller.org_id, drawn.filter((run, index) => !run.isRolledUp && isOpen[index] !== true).map(rowOf)) // prettier-ignore
  await insertRuns(control, caller.org_id, drawn.filter((_, index) => isOpen[index]).map((run) => ({ ...rowOf(run), ended_at: null }))) // prettier-ignore
  await deps.db.asSystem((q) =>
    q.query({
      text: `INSERT INTO storage_accruals SELECT $1, $2, to_timestamp($3::bigint / 1000 + (n - 1) * 86400),
               to_timestamp($3::bigint / 1000 + n * 86400), bytes FROM unnest($4::bigint[]) WITH ORDINALITY AS b (bytes, n)`,
      values: [caller.org_id, volume_id, START_MS, bytes],
    }),
  )
}

/** Runs passes until nothing is left to delete. */
async function runToEnd(loop: Loop): Promise<void> {
  while ((await loop.run(never)) !== null);
}

/** The three reports of a range, or the field for which a report is refused. */
async function reportsOf(range: TimeRange): Promise<readonly unknown[]> {
  const deps = depsNow()
  const sortedRows = async (breakdown: Promise<{ readonly rows: readonly object[] }>) => {
    const { rows, ...names } = await breakdown
    return { rows: rows.map((row) => JSON.stringify(row)).toSorted(), ...names }
  }
  const reports = [
    () => getUsage(deps, control.caller, range),
    async () => {
      const { items, sandboxes } = await getSandboxBreakdown(deps, control.caller, { ...range, page: null })
      return { rows: JSON.parse(`[${items.join(',')}]`), sandboxes }
    },
    () => sortedRows(getStorageBreakdown(deps, control.caller, range)),
  ]
  const found: unknown[] = []
  for (const report of reports) {
    try {
      found.push(JSON.parse(JSON.stringify(await report())))
    } catch (error) {
      if (!(error instanceof Problem)) throw error
      found.push(String(Object(error.details)['field']))
    }
  }
  return found
}

test('after pruning, reports of every range that is not older than the retention are the same, and others are the same or refused', async () => {
  let refused = 0
  let deleted = 0
  const count = async (): Promise<number> => {
    const { rows } = await control.deps.db.asSystem((q) =>
      q.query<{ readonly count: number }>({
        text: `SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM usage_days) + (SELECT count(*) FROM storage_accruals) AS count`,
      }),
    )
    return rows[0]?.count ?? 0
  }
  await fc.assert(
    fc.asyncProperty(
      fc.record({ runs: fc.array(runs, { maxLength: 10 }), bytes: holdings }),
      fc.array(ranges, { minLength: 1, maxLength: 5 }),
      kept,
      async (ledger, drawnRanges, days) => {
        await lay(ledger)
        const before = await Promise.all(drawnRanges.map(reportsOf))
        const rowsBefore = await count()
        await runToEnd(makePruneExpiredLoop({ ...depsNow(), retention: { ...days, sandboxes: 1, events: 0 } }))
        deleted += rowsBefore - (await count())
        for (const [index, range] of drawnRanges.entries()) {
          const now = await reportsOf(range)
          const horizonOf = (keptDays: number): number =>
            keptDays === 0 ? 0 : startOfDay(new Date(NOW.getTime() - keptDays * DAY_MS)).getTime()
          const [ofRuns, ofUsage] = [horizonOf(days.runs), horizonOf(days.usage)]
          const isYoung = range.since.getTime() >= Math.max(ofRuns, ofUsage)
          const isWhole = splitAtMidnights(range).parts.length === 0
          for (const [at, report] of now.entries()) {
            const isRefused = typeof report === 'string'
            if (isRefused) refused++
            else assert.deepEqual(report, before[index]?.[at])
            if (isYoung || (isWhole && (at === 0 || range.since.getTime() >= ofUsage)))
              assert.ok(
                !isRefused,
                `report ${String(at)} of ${JSON.stringify(range)} was refused for ${String(report)}`,
              )
          }
        }
      },
    ),
    { numRuns: 80 },
  )
  assert.ok(refused > 20, `only ${String(refused)} reports were refused`)
  assert.ok(deleted > 100, `only ${String(deleted)} rows were deleted`)
})

test('a reader during pruning reads the same as before, or is refused', async () => {
  const { caller } = control
  const bytes = Array.from({ length: 8 }, () => 2 ** 30)
  const drawn = Array.from({ length: 400 }, (_, n) => ({
    sandbox: n % 3,
    vcpus: 1,
    start: new Date(START_MS + (n % 8) * DAY_MS + n * 1_000),
    length: 3_600_000,
    isRolledUp: true,
    isEnded: true,
  }))
  await lay({ runs: drawn, bytes })
  const range = { since: new Date(START_MS + DAY_MS / 2), until: NOW }
  const whole = { since: new Date(START_MS), until: startOfDay(NOW) }
  const [partial, full] = [await reportsOf(range), await getUsage(depsNow(), caller, whole)]
  let isDone = false
  const reading = (async () => {
    while (!isDone) {
      for (const [at, report] of (await reportsOf(range)).entries())
        if (report !== 'query.since') assert.deepEqual(report, partial[at])
      assert.deepEqual(await getUsage(depsNow(), caller, whole), full)
    }
  })()
  await runToEnd(makePruneExpiredLoop({ ...depsNow(), retention: { runs: 2, usage: 2, sandboxes: 1, events: 0 } }))
  isDone = true
  await reading
  assert.deepEqual(await reportsOf(range), ['query.since', 'query.since', 'query.since'])
})

test('a breakdown keeps the names of sandboxes whose rows are deleted, as long as their usage is kept', async () => {
  const run = { sandbox: 1, vcpus: 1, start: new Date(START_MS), length: 1_000, isRolledUp: true, isEnded: true }
  await lay({ runs: [run], bytes: [] })
  const range = { since: new Date(START_MS), until: NOW }
  const names = async () =>
    (await getSandboxBreakdown(depsNow(), control.caller, { ...range, page: null })).sandboxes.map(({ name }) => name)
  await runToEnd(makePruneExpiredLoop({ ...depsNow(), retention: { runs: 1, usage: 0, sandboxes: 1, events: 0 } }))
  assert.deepEqual(await names(), ['b'])
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ readonly id: SandboxId }>({ text: `SELECT id FROM sandboxes WHERE visible_until IS NOT NULL` }),
  )
  assert.deepEqual(rows, [])
})
