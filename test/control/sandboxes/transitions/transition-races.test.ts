import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { startSandbox } from '../../../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../../../src/control/sandboxes/stop-sandbox.ts'
import { moveSandbox, moveInTransaction } from '../../../../src/control/sandboxes/transitions/transition.ts'
import type { TransitionRequest } from '../../../../src/control/sandboxes/transitions/transition-step.ts'
import { SYSTEM_ACTOR } from '../../../../src/domain/orgs/caller.ts'
import type { SandboxId } from '../../../../src/domain/ids.ts'
import { makeTestControl, type TestControl } from '../../../support/control.ts'
import { createTestSandbox } from '../../../support/quota-world.ts'
import { waitUntil } from '../../../support/wait.ts'

let control: TestControl
before(async () => {
  control = await makeTestControl()
})
after(() => control.close())

const cause = { actor: SYSTEM_ACTOR, code: 'requested' } as const

async function waiters(): Promise<number> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ readonly count: number }>({
      text: `SELECT count(*) AS count FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`,
    }),
  )
  return rows[0]?.count ?? 0
}

/** Runs two transitions so that the second one waits for a row lock which the first one holds. */
async function overlap(first: TransitionRequest, second: TransitionRequest): Promise<void> {
  let waiting: Promise<unknown> = Promise.resolve()
  await control.deps.db.transaction('system', async (tx) => {
    await moveInTransaction(control.deps, { tx, topics: [], steps: [], events: [] }, [first])
    waiting = moveSandbox(control.deps, second)
    await waitUntil(async () => (await waiters()) > 0)
  })
  await waiting
}

async function openRuns(id: SandboxId): Promise<number> {
  const { rowCount } = await control.deps.db.asSystem((q) =>
    q.query({ text: 'SELECT 1 AS open FROM runs WHERE sandbox_id = $1 AND ended_at IS NULL', values: [id] }),
  )
  return rowCount
}

test('a stop that waited for a concurrent start stops the run of that start', async () => {
  const { id } = await createTestSandbox(control.deps, control.caller, { start: false })
  const common = { sandbox_id: id, run_id: null, cause }
  await overlap({ ...common, event: 'start_admitted' }, { ...common, event: 'stop_requested' })
  assert.equal(await openRuns(id), 0)
})

test('a stop with an Idempotency-Key stops the run that began since it read the sandbox, and notes that run', async () => {
  const { deps, caller } = control
  const { id } = await createTestSandbox(deps, caller, { start: true })
  const restart = async (): Promise<void> => {
    await stopSandbox(deps, caller, { id })
    await startSandbox(deps, caller, { id }, { waitMs: null, signal: null })
  }
  let reads = 0
  const readSummary: typeof deps.readSummary = async (sought) => {
    const found = await deps.readSummary(sought)
    if (++reads === 1) await restart()
    return found
  }
  const noted: string[] = []
  const saveNote = (_: unknown, what: string): Promise<void> => Promise.resolve(void noted.push(what))
  const attempt = { resourceId: id, isRetry: false, savedNote: null, saveNote }
  const stopped = await stopSandbox({ ...deps, readSummary }, caller, { id }, { attempt })
  assert.deepEqual([stopped.status, noted.at(-1), await openRuns(id)], ['stopped', stopped.run_id, 0])

  await startSandbox(deps, caller, { id }, { waitMs: null, signal: null })
  const retried = await stopSandbox(
    deps,
    caller,
    { id },
    { attempt: { ...attempt, isRetry: true, savedNote: stopped.run_id } },
  )
  assert.deepEqual([retried.status, await openRuns(id)], ['starting', 1]) // a later run stays
})
