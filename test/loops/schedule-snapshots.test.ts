import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { createSandbox } from '../../src/control/sandboxes/create-sandbox.ts'
import { registerWorker } from '../../src/control/workers/worker-join.ts'
import { recordReport } from '../../src/control/workers/record-report.ts'
import type { ObservedRun } from '../../src/contract/workers/worker-protocol.ts'
import type { RunId, SandboxId, SnapshotId, WorkerId } from '../../src/domain/ids.ts'
import { findLabelRefusal } from '../../src/domain/sandboxes/labels.ts'
import { SNAPSHOT_LABEL } from '../../src/domain/sandboxes/snapshot-schedule.ts'
import { DAY_MS, HOUR_MS } from '../../src/domain/usage/metering.ts'
import type { Loop } from '../../src/loops/loop.ts'
import { makePlacePendingLoop } from '../../src/loops/place-pending.ts'
import { makeScheduleSnapshotsLoop } from '../../src/loops/schedule-snapshots.ts'
import * as snapshotWork from '../../src/store/snapshots/snapshot-work.ts'
import { makeTestControl, type TestControl } from '../support/control.ts'
import { reportOf } from '../support/report.ts'
import { PLAIN_SPEC } from '../support/spec.ts'
import { makeTestClock, type TestClock } from '../support/test-clock.ts'

const never = new AbortController().signal
const MINUTE_MS = 60_000
const DRIVER = { name: 'test', isolation: 'none', abilities: ['snapshots'], images: [], default_disk_mib: 1 } as const

let clock: TestClock
let control: TestControl
let worker: WorkerId
let loop: Loop
let seq = 0
before(async () => {
  clock = makeTestClock(new Date('2026-11-23T09:30:00Z'))
  control = await makeTestControl({ clock })
  worker = await registerWorker(control.deps, { name: 'home', credential: 'credential-of-home' })
  loop = makeScheduleSnapshotsLoop(control.deps)
})
after(() => control.close())

const report = (observed_runs: readonly ObservedRun[]) =>
  recordReport(control.deps, reportOf(worker, { seq: ++seq, observed_runs, driver: DRIVER }))

/** Creates a sandbox with this schedule, and runs it. */
async function running(
  schedule: string,
): Promise<{ readonly id: SandboxId; readonly run_id: RunId; readonly slug: string }> {
  const spec = { ...PLAIN_SPEC, labels: { [SNAPSHOT_LABEL]: schedule } }
  const input = { spec, name: null, slug: null, registry: { mode: 'auto' }, start: true, waitMs: null } as const
  await report([])
  const { id, slug } = await createSandbox(control.deps, control.caller, { ...input, signal: never })
  await makePlacePendingLoop(control.deps).run(never)
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ readonly run_id: RunId }>({ text: 'SELECT run_id FROM sandboxes WHERE id = $1', values: [id] }),
  )
  const run_id = rows[0]?.run_id
  assert.ok(run_id)
  await report([{ run_id, sandbox_id: id, phase: 'running' }])
  return { id, run_id, slug }
}

type Row = { readonly id: SnapshotId; readonly name: string; readonly status: string }

/** The scheduled snapshots of a sandbox that are not deleted, the oldest first. */
async function snapshotsOf(id: SandboxId): Promise<readonly Row[]> {
  const text = 'SELECT id, name, status FROM snapshots WHERE sandbox_id = $1 AND deleted_at IS NULL ORDER BY id'
  return (await control.deps.db.asSystem((q) => q.query<Row>({ text, values: [id] }))).rows
}

/** Lets the time pass while the worker goes on reporting. */
async function advance(ms: number): Promise<void> {
  clock.advance(ms)
  await renewLease()
}

async function renewLease(): Promise<void> {
  const text = `UPDATE workers SET lease_expires_at = $1::timestamptz + interval '15 s'`
  await control.deps.db.asSystem((q) => q.query({ text, values: [clock.now()] }))
}

/** Runs the loop after `ms`, and completes what it began, or fails it. */
async function pass(ms: number, does: 'complete' | 'fail' = 'complete'): Promise<void> {
  await advance(ms)
  await loop.run(never)
  const now = clock.now()
  const result = { disk_bytes: 1_048_576, size_bytes: 0, digest: 'sha256:0', manifest: '{}', completed_at: now }
  await control.deps.db.transaction('system', async (tx) => {
    const { rows } = await tx.query<Row>({ text: `SELECT id FROM snapshots WHERE status = 'queued'` })
    for (const { id } of rows)
      if (does === 'complete') await snapshotWork.complete(tx, id, result)
      else await snapshotWork.fail(tx, id, { error: { code: 'failed', message: 'no' }, now })
  })
}

test('a sandbox has a snapshot once in each period, and the newest ones are kept', async () => {
  const { id, slug } = await running('daily keep=2')
  await pass(0)
  assert.deepEqual(
    (await snapshotsOf(id)).map(({ name }) => name),
    [`${slug}-20261123-093000`],
  )
  await pass(DAY_MS - MINUTE_MS)
  assert.equal((await snapshotsOf(id)).length, 1, 'too early')
  await pass(MINUTE_MS)
  await pass(DAY_MS)
  await pass(MINUTE_MS)
  assert.deepEqual(
    (await snapshotsOf(id)).map(({ name }) => name),
    [`${slug}-20261124-093000`, `${slug}-20261125-093000`],
  )
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ readonly labels: unknown }>({ text: 'SELECT labels FROM snapshots WHERE sandbox_id = $1', values: [id] }),
  )
  assert.deepEqual(rows[0]?.labels, { [SNAPSHOT_LABEL]: 'daily keep=2' })
})

test('a snapshot that fails is tried again in an hour, and one that is being made is not made twice', async () => {
  const { id } = await running('weekly')
  await pass(0, 'fail')
  await pass(MINUTE_MS)
  assert.deepEqual(
    (await snapshotsOf(id)).map(({ status }) => status),
    ['failed'],
  )
  await advance(HOUR_MS)
  await loop.run(never)
  await loop.run(never)
  assert.deepEqual(
    (await snapshotsOf(id)).map(({ status }) => status),
    ['failed', 'queued'],
  )
  await pass(0)
})

test('a sandbox whose worker does not report has no new snapshot until it reports again', async () => {
  const { id } = await running('hourly')
  await pass(0)
  clock.advance(HOUR_MS)
  await loop.run(never)
  assert.equal((await snapshotsOf(id)).length, 1)
  await pass(0)
  assert.equal((await snapshotsOf(id)).length, 2)
})

test('a sandbox that did not run since its last snapshot has no new one', async () => {
  const { id, run_id } = await running('hourly')
  await pass(0)
  await pass(HOUR_MS)
  assert.equal((await snapshotsOf(id)).length, 2)
  clock.advance(MINUTE_MS)
  await report([{ run_id, sandbox_id: id, phase: 'ended', outcome: { kind: 'exited', code: 0 } }])
  await pass(HOUR_MS)
  assert.equal((await snapshotsOf(id)).length, 3, 'it ran after the second one')
  await pass(HOUR_MS)
  assert.equal((await snapshotsOf(id)).length, 3)
})

test('a process that no longer leads makes no second snapshot and deletes none', async () => {
  const { id } = await running('daily keep=1')
  const lost = new Error('another process leads')
  const paused = makeScheduleSnapshotsLoop({ ...control.deps, fence: () => Promise.reject(lost) })
  const leading = makeScheduleSnapshotsLoop({ ...control.deps, fence: () => Promise.resolve() })
  await advance(0)
  await assert.rejects(paused.run(never), lost)
  assert.deepEqual(await snapshotsOf(id), [])
  await leading.run(never)
  assert.equal((await snapshotsOf(id)).length, 1)
  await pass(0)
  await pass(DAY_MS)
  const made = await snapshotsOf(id)
  assert.equal(made.length, 2, 'the next pass deletes one')
  await assert.rejects(paused.run(never), lost)
  assert.deepEqual(await snapshotsOf(id), made)
  await leading.run(never)
  assert.equal((await snapshotsOf(id)).length, 1)
})

test('a snapshot that a quota refuses leaves an event, and is tried again in an hour', async () => {
  const { id } = await running('daily')
  const { org_id } = control.caller
  const limit = async (gib: number | null): Promise<void> => {
    const values = [org_id, gib === null ? '{}' : JSON.stringify({ max_total_storage_gib: gib })]
    await control.deps.db.asSystem((q) =>
      q.query({ text: 'UPDATE orgs SET quota_overrides = $2::jsonb WHERE id = $1', values }),
    )
  }
  const refusals = async (): Promise<readonly string[]> => {
    const text = `SELECT payload->>'message' AS message FROM events WHERE event_type = 'snapshot_failed' AND payload->>'sandbox_id' = $1`
    const found = await control.deps.db.asSystem((q) => q.query<{ readonly message: string }>({ text, values: [id] }))
    return found.rows.map(({ message }) => message)
  }
  await limit(0)
  await pass(0)
  await pass(MINUTE_MS)
  const [why, ...more] = await refusals()
  assert.match(why ?? '', /^sandyard\.snapshot: quota exceeded: .*; tried again in an hour$/)
  assert.deepEqual(more, [])
  assert.deepEqual(await snapshotsOf(id), [])
  await limit(null)
  await pass(HOUR_MS)
  assert.equal((await snapshotsOf(id)).length, 1)
})

test('a schedule that can not be kept is refused by name', () => {
  for (const schedule of ['', 'yearly', 'daily keep=0', 'daily keep=101', 'daily  keep=1', 'daily keep=07', 'Daily']) {
    const refusal = findLabelRefusal({ [SNAPSHOT_LABEL]: schedule }, 'labels')
    assert.deepEqual([refusal?.code, refusal?.field], ['invalid_request', `labels.${SNAPSHOT_LABEL}`], schedule)
  }
  for (const schedule of ['hourly', 'daily', 'weekly keep=1', 'daily keep=100'])
    assert.equal(findLabelRefusal({ [SNAPSHOT_LABEL]: schedule }, 'labels'), null)
})
