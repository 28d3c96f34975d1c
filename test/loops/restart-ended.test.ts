import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { ObservedRun, RunOutcome } from '../../src/contract/workers/worker-protocol.ts'
import { createSandbox } from '../../src/control/sandboxes/create-sandbox.ts'
import { getSandbox } from '../../src/control/sandboxes/read-sandboxes.ts'
import { startSandbox } from '../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../src/control/sandboxes/stop-sandbox.ts'
import { moveSandbox } from '../../src/control/sandboxes/transitions/transition.ts'
import { recordReport } from '../../src/control/workers/record-report.ts'
import { registerWorker } from '../../src/control/workers/worker-join.ts'
import type { RunId, SandboxId, WorkerId } from '../../src/domain/ids.ts'
import { SYSTEM_ACTOR } from '../../src/domain/orgs/caller.ts'
import type { CauseCode } from '../../src/domain/sandboxes/lifecycle.ts'
import {
  RESTART_LABEL,
  RESTARTS_MAX,
  restartBackoffMs,
  type RestartPolicy,
} from '../../src/domain/sandboxes/restart.ts'
import { makePlacePendingLoop } from '../../src/loops/place-pending.ts'
import { makeRestartEndedLoop } from '../../src/loops/restart-ended.ts'
import { makeTestControl, type TestControl } from '../support/control.ts'
import { reportOf } from '../support/report.ts'
import { PLAIN_SPEC } from '../support/spec.ts'
import { makeTestClock, type TestClock } from '../support/test-clock.ts'

const never = new AbortController().signal
const CRASH: RunOutcome = { kind: 'exited', code: 1 }
const WELL: RunOutcome = { kind: 'exited', code: 0 }

let clock: TestClock
let control: TestControl
let worker: WorkerId
let seq = 0
before(async () => {
  clock = makeTestClock()
  control = await makeTestControl({ clock })
  worker = await registerWorker(control.deps, { name: 'home', credential: 'credential-of-home' })
})
after(() => control.close())

const report = (observed_runs: readonly ObservedRun[] = []) =>
  recordReport(control.deps, reportOf(worker, { seq: ++seq, observed_runs }))

/** Creates and starts a sandbox with this policy. */
async function create(policy: RestartPolicy | null): Promise<SandboxId> {
  const spec = { ...PLAIN_SPEC, labels: policy === null ? {} : { [RESTART_LABEL]: policy } }
  const input = { spec, name: null, slug: null, registry: { mode: 'auto' }, start: true, waitMs: null } as const
  const { id } = await createSandbox(control.deps, control.caller, { ...input, signal: never })
  await place()
  return id
}

async function place(): Promise<void> {
  await report()
  await makePlacePendingLoop(control.deps).run(never)
}

type State = {
  readonly status: string
  readonly run_id: RunId | null
  readonly restart_count: number
  readonly waitsMs: number | null
  readonly last_failure_message: string | null
}

async function stateOf(id: SandboxId): Promise<State> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<Omit<State, 'waitsMs'> & { readonly restart_at: Date | null }>({
      text: 'SELECT status, run_id, restart_count, restart_at, last_failure_message FROM sandboxes WHERE id = $1',
      values: [id],
    }),
  )
  const [row] = rows
  assert.ok(row)
  return { ...row, waitsMs: row.restart_at === null ? null : row.restart_at.getTime() - clock.now().getTime() }
}

/** Lets the run of a sandbox run for `ms`, and ends it. Resolves with the sandbox's state. */
async function runOnce(id: SandboxId, outcome: RunOutcome, ms = 10): Promise<State> {
  const { run_id } = await stateOf(id)
  assert.ok(run_id !== null)
  await report([{ run_id, sandbox_id: id, phase: 'running' }])
  clock.advance(ms)
  await report([{ run_id, sandbox_id: id, phase: 'ended', outcome }])
  return stateOf(id)
}

/** Runs the loop once the sandbox's restart is due. */
async function restart(id: SandboxId): Promise<State> {
  clock.advance((await stateOf(id)).waitsMs ?? 0)
  await makeRestartEndedLoop(control.deps).run(never)
  await place()
  return stateOf(id)
}

test('a sandbox that fails is restarted after a back-off that doubles, and a long run begins the count again', async () => {
  const id = await create('on-failure')
  for (const [count, waitsMs] of [1_000, 2_000, 4_000].entries()) {
    const ended = await runOnce(id, CRASH)
    assert.deepEqual([ended.status, ended.restart_count, ended.waitsMs], ['failed', count + 1, waitsMs])
    await makeRestartEndedLoop(control.deps).run(never)
    assert.equal((await stateOf(id)).status, 'failed', 'it was restarted too early')
    const restarted = await restart(id)
    assert.equal(restarted.status, 'starting')
    assert.notEqual(restarted.run_id, ended.run_id)
  }
  const later = await runOnce(id, CRASH, 10 * 60_000)
  assert.deepEqual([later.restart_count, later.waitsMs], [1, 1_000])
  assert.equal(restartBackoffMs(RESTARTS_MAX), 300_000)
})

for (const [policy, outcome, restarts] of [
  ['on-failure', WELL, false],
  ['on-failure', { kind: 'signalled', signal: 'SIGSEGV' }, true],
  ['on-failure', { kind: 'out_of_memory' }, true],
  ['on-failure', { kind: 'lost', message: 'lost' }, true],
  ['on-failure', { kind: 'stopped' }, true],
  ['always', WELL, true],
  ['always', CRASH, true],
  [null, CRASH, false],
] as const) {
  test(`with the policy ${String(policy)}, the outcome ${JSON.stringify(outcome)} leads to ${restarts ? 'a' : 'no'} restart`, async () => {
    const id = await create(policy)
    assert.equal((await runOnce(id, outcome)).waitsMs, restarts ? 1_000 : null)
  })
}

test('a first start that fails is not repeated, but a restart that fails is', async () => {
  const id = await create('always')
  const failure: RunOutcome = { kind: 'start_failed', reason: 'image', message: 'no such image' }
  const fail = async () => {
    const { run_id } = await stateOf(id)
    assert.ok(run_id !== null)
    await report([{ run_id, sandbox_id: id, phase: 'ended', outcome: failure }])
    return stateOf(id)
  }
  assert.equal((await fail()).waitsMs, null)
  await startSandbox(control.deps, control.caller, { id }, { waitMs: null, signal: null })
  await place()
  await runOnce(id, CRASH)
  await restart(id)
  assert.equal((await fail()).waitsMs, 2_000)
})

test('a workload that ends before its worker reports that it runs is restarted too', async () => {
  const id = await create('on-failure')
  const { run_id } = await stateOf(id)
  assert.ok(run_id !== null)
  await report([{ run_id, sandbox_id: id, phase: 'ended', outcome: CRASH }])
  assert.equal((await stateOf(id)).waitsMs, 1_000)
})

test('a stop during the back-off changes no time of the run that ended before', async () => {
  const { deps, caller } = control
  const id = await create('on-failure')
  await runOnce(id, CRASH)
  const { stopped_at } = await getSandbox(deps, caller, { id })
  assert.ok(stopped_at !== null)
  clock.advance(500)
  const stopped = await stopSandbox(deps, caller, { id })
  assert.deepEqual([stopped.status, stopped.stopped_at], ['stopped', stopped_at])
})

test('a requested stop ends the policy until the next start, but the end of a drain does not', async () => {
  const stops: readonly (readonly [CauseCode, number | null])[] = [
    ['requested', null],
    ['idle_timeout', null],
    ['max_duration', null],
    ['pool_exhausted', null],
    ['suspended', null],
    ['drained', 1_000],
  ]
  for (const [code, waitsMs] of stops) {
    const id = await create('always')
    const { run_id } = await stateOf(id)
    assert.ok(run_id !== null)
    await report([{ run_id, sandbox_id: id, phase: 'running' }])
    const cause = { actor: SYSTEM_ACTOR, code }
    await moveSandbox(control.deps, { sandbox_id: id, run_id, event: 'stop_requested', cause })
    await report([{ run_id, sandbox_id: id, phase: 'ended', outcome: { kind: 'stopped' } }])
    assert.equal((await stateOf(id)).waitsMs, waitsMs, code)
    if (waitsMs !== null) continue
    await startSandbox(control.deps, control.caller, { id }, { waitMs: null, signal: null })
    await place()
    assert.equal((await runOnce(id, CRASH)).waitsMs, 1_000)
  }
})

test('a stop while a drain stops the sandbox ends the policy, and leaves the time of the first stop', async () => {
  const { deps, caller } = control
  const id = await create('always')
  const { run_id } = await stateOf(id)
  assert.ok(run_id !== null)
  await report([{ run_id, sandbox_id: id, phase: 'running' }])
  const drained = { sandbox_id: id, run_id, event: 'stop_requested', cause: { actor: SYSTEM_ACTOR, code: 'drained' } } as const // prettier-ignore
  await moveSandbox(deps, drained)
  const [first] = await stopOf(run_id)
  clock.advance(1_000)
  assert.equal((await stopSandbox(deps, caller, { id })).status, 'stopping')
  assert.deepEqual(await stopOf(run_id), [first, 'requested'])
  for (const again of [drained, { ...drained, cause: { ...drained.cause, code: 'requested' } } as const])
    assert.equal((await moveSandbox(deps, again)).kind, 'stale')
  await report([{ run_id, sandbox_id: id, phase: 'ended', outcome: { kind: 'stopped' } }])
  assert.deepEqual([(await stateOf(id)).status, (await stateOf(id)).waitsMs], ['stopped', null])
})

async function stopOf(run: RunId): Promise<readonly [ms: number | undefined, cause: CauseCode | null | undefined]> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ readonly stop_requested_at: Date | null; readonly stop_cause: CauseCode | null }>({
      text: 'SELECT stop_requested_at, stop_cause FROM runs WHERE id = $1',
      values: [run],
    }),
  )
  return [rows[0]?.stop_requested_at?.getTime(), rows[0]?.stop_cause]
}

test('a retry of a stop during the back-off succeeds, and never ends the wait for a restart of a later run', async () => {
  const { deps, caller } = control
  const id = await create('always')
  await runOnce(id, CRASH)
  const notes: string[] = []
  const attempt = { resourceId: '', isRetry: false, savedNote: null }
  const saveNote = (_tx: unknown, note: string): Promise<void> => Promise.resolve(void notes.push(note))
  await stopSandbox(deps, caller, { id }, { attempt: { ...attempt, saveNote } })
  const retry = { attempt: { ...attempt, isRetry: true, savedNote: notes[0] ?? null, saveNote } }
  assert.equal((await stopSandbox(deps, caller, { id }, retry)).status, 'stopped')
  await startSandbox(deps, caller, { id }, { waitMs: null, signal: null })
  await place()
  await runOnce(id, CRASH)
  await stopSandbox(deps, caller, { id }, retry)
  assert.equal((await stateOf(id)).waitsMs, 1_000)
  await stopSandbox(deps, caller, { id })
  await assert.rejects(stopSandbox(deps, caller, { id }, { attempt: { ...attempt, saveNote } }))
  assert.equal(notes.length, 1, 'a refused stop saves no note')
})

test('a stop during the back-off takes effect, even if the loop has already read that the restart is due', async () => {
  const { deps, caller } = control
  const id = await create('always')
  const { waitsMs } = await runOnce(id, CRASH)
  clock.advance(waitsMs ?? 0)
  const { status } = await stopSandbox(deps, caller, { id })
  assert.equal(status, 'stopped')
  const cause = { actor: SYSTEM_ACTOR, code: 'restart_policy' } as const
  const late = await moveSandbox(deps, { sandbox_id: id, run_id: null, event: 'start_admitted', cause })
  assert.equal(late.kind, 'stale')
  assert.deepEqual([(await stateOf(id)).status, (await stateOf(id)).waitsMs], ['stopped', null])
  await assert.rejects(stopSandbox(deps, caller, { id }), /invalid state transition/)
})

test('a start of a client during the back-off starts at once and begins the count again', async () => {
  const id = await create('always')
  await runOnce(id, CRASH)
  await startSandbox(control.deps, control.caller, { id }, { waitMs: null, signal: null })
  await makeRestartEndedLoop(control.deps).run(never)
  await place()
  const { restart_count, waitsMs } = await stateOf(id)
  assert.deepEqual([restart_count, waitsMs], [0, null])
  assert.equal((await runOnce(id, CRASH)).restart_count, 1)
})

test('after twenty restarts in a row the policy gives up, and the reply and the event say so', async () => {
  const id = await create('on-failure')
  for (let count = 1; count <= RESTARTS_MAX; count++) {
    assert.equal((await runOnce(id, CRASH)).restart_count, count)
    assert.equal((await restart(id)).status, 'starting')
  }
  const { status, waitsMs, last_failure_message } = await runOnce(id, CRASH)
  assert.deepEqual([status, waitsMs], ['failed', null])
  const told = 'the workload exited with code 1; sandyard.restart gave up after 20 restarts in a row'
  assert.equal(last_failure_message, told)
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ readonly event_type: string; readonly message: string; readonly cause: string }>({
      text: `SELECT event_type, payload ->> 'message' AS message, payload ->> 'cause' AS cause FROM events
             WHERE sandbox_id = $1 ORDER BY id`,
      values: [id],
    }),
  )
  assert.equal(rows.at(-1)?.message, told)
  const starts = rows.filter(({ event_type, cause }) => event_type === 'sandbox_starting' && cause === 'restart_policy')
  assert.equal(starts.length, RESTARTS_MAX)
  assert.equal(starts.at(-1)?.message, 'restart 20 of at most 20 in a row')
})

test('a restart that a suspension refuses is told, and tried again each minute', async () => {
  const id = await create('always')
  await runOnce(id, CRASH)
  const { deps, caller } = control
  const suspend = (at: Date | null) =>
    deps.db.asSystem((q) =>
      q.query({ text: 'UPDATE orgs SET suspended_at = $2 WHERE id = $1', values: [caller.org_id, at] }),
    )
  await suspend(clock.now())
  const refused = await restart(id)
  assert.equal(refused.waitsMs, 60_000)
  assert.match(refused.last_failure_message ?? '', /^sandyard.restart: .*suspended.*; tried again every minute$/)
  await suspend(null)
  assert.equal((await restart(id)).status, 'starting')
})
