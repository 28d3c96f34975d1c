import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { asId, type OrgId, type SandboxId, type WorkerId } from '../../../src/domain/ids.ts'
import type { Queryable, Statement } from '../../../src/store/postgres/database.ts'
import * as sandboxStates from '../../../src/store/sandboxes/sandbox-states.ts'
import * as sandboxes from '../../../src/store/sandboxes/sandboxes.ts'
import * as restarts from '../../../src/store/sandboxes/restarts.ts'
import * as runs from '../../../src/store/sandboxes/runs.ts'
import { renderSandboxDays } from '../../../src/store/usage/sandbox-days.ts'
import { orgDays } from '../../../src/store/usage/usage.ts'
import * as capacity from '../../../src/store/workers/capacity.ts'
import { recordReports } from '../../../src/store/workers/worker-reports.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { insertSandboxes } from '../../support/usage.ts'

let control: TestControl
before(async () => {
  control = await makeTestControl()
})
after(() => control.close())

/** PostgreSQL makes five plans for given values first. From then on, it takes the general plan if that seems no worse. */
const CALLS = 8
const ID = '0199a000-0000-7000-8000-000000000001'

type Planned = { readonly name: string; readonly is_general: boolean }

/** How many rows of sandboxes this transaction has read. PostgreSQL would forget it at the end of any transaction. */
async function countReadSandboxes(q: Queryable): Promise<number> {
  const { rows } = await q.query<{ readonly read: number }>({
    text: `SELECT (seq_tup_read + coalesce(idx_tup_fetch, 0))::integer AS read FROM pg_stat_xact_all_tables
           WHERE relname = 'sandboxes' AND schemaname = current_schema()`,
  })
  return rows[0]?.read ?? NaN
}

/** A `Queryable` that notes the statements it runs. */
function noteStatements(q: Queryable): { readonly noting: Queryable; readonly noted: readonly Statement[] } {
  const noted: Statement[] = []
  const noting: Queryable = {
    query: (statement: Statement) => {
      noted.push(statement)
      return q.query(statement)
    },
  }
  return { noting, noted }
}

test('the statements that each start and stop runs are not planned again each time', async () => {
  const now = new Date()
  const planned = await control.deps.db.asSystem(async (q) => {
    const { noting, noted } = noteStatements(q)
    for (let call = 0; call < CALLS; call++) {
      await sandboxStates.lock(noting, [asId<SandboxId>(ID)])
      await capacity.lockFree(noting, [{ worker_id: asId<WorkerId>(ID) }], now)
      await capacity.pending(noting, { after: null, limit: 1_000, waitingUpTo: null })
      await capacity.hasWaiting(noting)
      await capacity.listFree(noting, now)
      const some = { org_id: asId<OrgId>(ID), ids: [asId<SandboxId>(ID)], now }
      await sandboxes.findMany(noting, some, 65_536)
      await sandboxes.findSummaries(noting, some)
      await sandboxes.findDeleted(noting, [asId<SandboxId>(ID)])
      await runs.ofWorker(noting, asId<WorkerId>(ID))
      await runs.assignmentsOf(noting, asId<WorkerId>(ID), {}, 65_536)
    }
    const names = new Set(noted.map(({ name, text }) => name ?? text))
    const { rows } = await q.query<Planned>({
      text: 'SELECT name, generic_plans > 0 AS is_general FROM pg_prepared_statements WHERE name = ANY($1)',
      values: [[...names]],
    })
    assert.equal(rows.length, names.size)
    return rows
  })
  assert.deepEqual(
    planned.filter(({ is_general }) => !is_general).map(({ name }) => name),
    [],
  )
})

test('the report of a worker reads its own sandboxes, not all of them', async () => {
  const names = Array.from({ length: 2_000 }, (_, nth) => `sandbox-${String(nth)}`)
  await insertSandboxes(control, control.caller.org_id, names)
  for (const isAnalyzed of [false, true]) {
    if (isAnalyzed) await control.asOwner('ANALYZE sandboxes')
    const { text, name } = recordReports([], { now: new Date(), expiresAt: new Date() })
    const { rows } = await control.deps.db.asSystem((q) =>
      q.query<{ readonly 'QUERY PLAN': string }>({ text: `EXPLAIN (GENERIC_PLAN) ${text}` }),
    )
    const plan = rows.map((row) => row['QUERY PLAN']).join('\n')
    assert.match(plan, /sandboxes_pkey/, name)
    assert.doesNotMatch(plan, /Seq Scan on (?:pruned_)?sandboxes/, `${isAnalyzed ? 'with' : 'without'} statistics`)
  }
})

test('whether a deleted sandbox still runs is looked up by its last run, not among all open runs', async () => {
  const plan = await control.deps.db.asSystem(async (q) => {
    const { noting, noted } = noteStatements(q)
    await sandboxes.findDeleted(noting, [asId<SandboxId>(ID)])
    const { rows } = await q.query<{ readonly 'QUERY PLAN': string }>({
      text: `EXPLAIN (GENERIC_PLAN) ${noted[0]?.text ?? ''}`,
    })
    return rows.map((row) => row['QUERY PLAN']).join('\n')
  })
  assert.match(plan, /Index Scan using runs_pkey on runs/)
  assert.doesNotMatch(plan, /(?:Bitmap Heap|Seq) Scan on runs|runs_active/)
})

test('the next restart is found by its index, also on a connection that looked while there was no sandbox', async () => {
  const fresh = await makeTestControl()
  try {
    const readRows = await fresh.deps.db.transaction('system', async (tx) => {
      await restarts.nextDue(tx)
      await restarts.listDue(tx, new Date(), 1)
      const names = Array.from({ length: 5_000 }, (_, nth) => `sandbox-${String(nth)}`)
      await insertSandboxes(fresh, fresh.caller.org_id, names)
      await restarts.nextDue(tx)
      await restarts.listDue(tx, new Date(), 1)
      return countReadSandboxes(tx)
    })
    assert.equal(readRows, 0)
  } finally {
    await fresh.close()
  }
})

test('a report that is cut within days reads rolled up runs from their indexes alone', async () => {
  const { org_id } = control.caller
  const range = { since: new Date('2026-01-02T03:04:05Z'), until: new Date('2026-01-20T21:22:23Z') }
  const question = { org_id, range, now: new Date('2026-02-01T00:00:00Z') }
  const plans = await control.deps.db.transaction(org_id, async (tx) => {
    await tx.query({
      text: `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)`,
    })
    const { noting, noted } = noteStatements(tx)
    await orgDays(noting, question)
    await renderSandboxDays(noting, question, { after: null, limit: 10 })
    return Promise.all(
      noted.map(async ({ text, values = [] }) => {
        const { rows } = await tx.query<{ readonly 'QUERY PLAN': string }>({ text: `EXPLAIN ${text}`, values })
        return rows.map((row) => row['QUERY PLAN']).join('\n')
      }),
    )
  })
  assert.equal(plans.length, 2)
  for (const plan of plans) assert.match(plan, /Index Only Scan using runs_rolled_up/)
})
