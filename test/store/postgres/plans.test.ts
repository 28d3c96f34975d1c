import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { asId, type OrgId, type SandboxId, type WorkerId } from '../../../src/domain/ids.ts'
import type { Queryable, Statement } from '../../../src/store/postgres/database.ts'
import * as sandboxStates from '../../../src/store/sandboxes/sandbox-states.ts'
import * as sandboxes from '../../../src/store/sandboxes/sandboxes.ts'
import * as runs from '../../../src/store/sandboxes/runs.ts'
import * as capacity from '../../../src/store/workers/capacity.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'

let control: TestControl
before(async () => {
  control = await makeTestControl()
})
after(() => control.close())

/** PostgreSQL makes five plans for given values first. From then on, it takes the general plan if that seems no worse. */
const CALLS = 8
const ID = '0199a000-0000-7000-8000-000000000001'

type Planned = { readonly name: string; readonly is_general: boolean }

test('the statements that each start and stop runs are not planned again each time', async () => {
  const now = new Date()
  const planned = await control.deps.db.asSystem(async (q) => {
    const names = new Set<string>()
    const noting: Queryable = {
      query: (statement: Statement) => {
        names.add(statement.name ?? statement.text)
        return q.query(statement)
      },
    }
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
      await runs.assignmentsOf(noting, asId<WorkerId>(ID), {})
    }
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
