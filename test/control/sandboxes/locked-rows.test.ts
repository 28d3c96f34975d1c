import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { deleteBatch } from '../../../src/control/sandboxes/delete-sandbox.ts'
import { getSandbox } from '../../../src/control/sandboxes/read-sandboxes.ts'
import { moveAll } from '../../../src/control/sandboxes/transitions/transition-batches.ts'
import type { TransitionRequest } from '../../../src/control/sandboxes/transitions/transition-step.ts'
import { SYSTEM_ACTOR } from '../../../src/domain/orgs/caller.ts'
import { isUnavailable } from '../../../src/store/postgres/database.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { onServer, startTestServer, TEST_SERVER_VARIABLE, type TestServer } from '../../support/postgres.ts'
import { createTestSandbox } from '../../support/quota-world.ts'

let server: TestServer
let control: TestControl
before(async () => {
  server = await startTestServer() // a transaction that stays open delays the events in all databases of its server (decision 59)
  process.env[TEST_SERVER_VARIABLE] = server.adminUrl
  control = await makeTestControl()
})
after(async () => {
  await control.close()
  await server.stop()
})

async function startsOf(count: number): Promise<readonly TransitionRequest[]> {
  const made = await Promise.all(
    Array.from({ length: count }, () => createTestSandbox(control.deps, control.caller, { start: false })),
  )
  const cause = { actor: SYSTEM_ACTOR, code: 'requested' } as const
  return made.map(({ id }) => ({ sandbox_id: id, run_id: null, event: 'start_admitted', cause }))
}

async function countStarted(starts: readonly TransitionRequest[]): Promise<number> {
  const ids = starts.map(({ sandbox_id }) => sandbox_id)
  const { rowCount } = await control.deps.db.asSystem((q) =>
    q.query({ text: `SELECT 1 AS one FROM sandboxes WHERE id = ANY($1) AND status = 'starting'`, values: [ids] }),
  )
  return rowCount
}

test('a sandbox locked by another session does not block the transitions of others', async () => {
  const starts = await startsOf(20)
  await onServer(control.databaseUrl, async (somebody) => {
    await somebody.query(`SELECT set_config('sandyard.org', '*', false)`)
    await somebody.query('BEGIN')
    await somebody.query('SELECT 1 FROM sandboxes WHERE id = $1 FOR UPDATE', [starts[0]?.sandbox_id])
    assert.equal(await moveAll(control.deps, starts), 1)
    await somebody.query('ROLLBACK')
  })
  assert.equal(await countStarted(starts), 19)
})

test('a sandbox locked by another session does not block the deletion of others', async () => {
  const { deps, caller } = control
  const starts = await startsOf(20)
  const removals = await Promise.all(
    starts.map(async ({ sandbox_id }) => ({ caller, sandbox: await getSandbox(deps, caller, { id: sandbox_id }) })),
  )
  await onServer(control.databaseUrl, async (somebody) => {
    await somebody.query(`SELECT set_config('sandyard.org', '*', false)`)
    await somebody.query('BEGIN')
    await somebody.query('SELECT 1 FROM sandboxes WHERE id = $1 FOR UPDATE', [starts[0]?.sandbox_id])
    const [first, ...others] = await deleteBatch(deps, removals)
    assert.ok(first !== null && first !== undefined && isUnavailable(first.error))
    assert.deepEqual(
      others,
      Array.from({ length: 19 }, () => null),
    )
    await somebody.query('ROLLBACK')
  })
})

test('if another session locks a whole table, a pass waits for the lock a few times and not once for each sandbox', async () => {
  const starts = await startsOf(20)
  await onServer(control.databaseUrl, async (somebody) => {
    await somebody.query('BEGIN')
    await somebody.query('LOCK TABLE sandboxes IN ACCESS EXCLUSIVE MODE')
    await assert.rejects(moveAll(control.deps, starts), isUnavailable)
    await somebody.query('ROLLBACK')
  })
  assert.equal(await moveAll(control.deps, starts), 0)
  assert.equal(await countStarted(starts), 20)
})
