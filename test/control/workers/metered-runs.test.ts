import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { ObservedRun } from '../../../src/contract/workers/worker-protocol.ts'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { adoptMachineClock } from '../../../src/control/workers/machine-clock.ts'
import { recordReport } from '../../../src/control/workers/record-report.ts'
import { registerWorker } from '../../../src/control/workers/worker-join.ts'
import type { RunId, SandboxId, WorkerId } from '../../../src/domain/ids.ts'
import { DAY_MS } from '../../../src/domain/usage/metering.ts'
import { WORKER_LEASE_MS } from '../../../src/domain/workers/lease.ts'
import { makePlacePendingLoop } from '../../../src/loops/place-pending.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { reportOf } from '../../support/report.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'
import { makeTestClock, type TestClock } from '../../support/test-clock.ts'

// Runs are metered by the clock of their worker, because the wall clocks of server processes differ and are set.

const never = new AbortController().signal

let clock: TestClock
let control: TestControl
let worker: WorkerId
let seq = 0
before(async () => {
  clock = makeTestClock()
  control = await makeTestControl({ clock })
  worker = await registerWorker(control.deps, { name: 'home', credential: 'credential-of-home' })
  await report([])
})
after(() => control.close())

async function report(observed_runs: readonly ObservedRun[]): Promise<void> {
  assert.ok((await recordReport(control.deps, reportOf(worker, { seq: ++seq, observed_runs }))) !== null)
}

type Interval = { readonly started_at: Date; readonly ended_at: Date | null; readonly deadline_at: Date | null }

async function intervalOf(run: RunId): Promise<Interval> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<Interval>({ text: 'SELECT started_at, ended_at, deadline_at FROM runs WHERE id = $1', values: [run] }),
  )
  const [interval] = rows
  assert.ok(interval)
  return interval
}

/** Starts a sandbox that may run for an hour. */
async function begin(): Promise<{ readonly run_id: RunId; readonly sandbox_id: SandboxId }> {
  const { deps, caller } = control
  const spec = { ...PLAIN_SPEC, lifecycle: { ...PLAIN_SPEC.lifecycle, max_duration_secs: 3600 } }
  const input = { spec, name: null, slug: null, registry: { mode: 'auto' }, start: true, waitMs: null } as const
  const { id: sandbox_id } = await createSandbox(deps, caller, { ...input, signal: never })
  await report([])
  await makePlacePendingLoop(deps).run(never)
  const { rows } = await deps.db.asSystem((q) =>
    q.query<{ id: RunId }>({ text: 'SELECT id FROM runs WHERE sandbox_id = $1', values: [sandbox_id] }),
  )
  const [run] = rows
  assert.ok(run)
  await report([{ run_id: run.id, sandbox_id, phase: 'running' }])
  return { run_id: run.id, sandbox_id }
}

async function meteredMs(passedMs: number, ran_ms?: number): Promise<number> {
  const run = await begin()
  clock.advance(passedMs)
  const ended = { ...run, phase: 'ended', outcome: { kind: 'exited', code: 0 } } as const
  await report([ran_ms === undefined ? ended : { ...ended, ran_ms }])
  const { started_at, ended_at } = await intervalOf(run.run_id)
  return (ended_at?.getTime() ?? 0) - started_at.getTime()
}

test('a run is metered for as long as its worker measured, not for as long as its end took to arrive', async () => {
  assert.equal(await meteredMs(DAY_MS, 60_000), 60_000)
  assert.equal(await meteredMs(60_000), 60_000) // a worker that doesn't know
})

test('no worker prolongs a run by more than its lease', async () => {
  assert.equal(await meteredMs(10_000, DAY_MS), 10_000 + WORKER_LEASE_MS)
})

for (const jumpMs of [DAY_MS, -DAY_MS]) {
  test(`a server that starts after its clock was set by ${String(jumpMs / DAY_MS)} d moves the times of an open run`, async () => {
    const { deps } = control
    const run = await begin()
    const before = await intervalOf(run.run_id)
    const machine = { bootId: deps.uuids.next(), sinceBootMs: () => 5_000_000 + clock.monotonicMs() }
    await adoptMachineClock({ ...deps, machine })
    assert.deepEqual(await intervalOf(run.run_id), before)
    clock.advance(60_000)
    const set = { now: () => new Date(clock.now().getTime() + jumpMs) }
    for (let starts = 0; starts < 2; starts++) await adoptMachineClock({ ...deps, clock: set, machine })
    const after = await intervalOf(run.run_id)
    const movedMs = (one: Date | null, other: Date | null) => (one?.getTime() ?? 0) - (other?.getTime() ?? 0)
    assert.deepEqual(
      [movedMs(after.started_at, before.started_at), movedMs(after.deadline_at, before.deadline_at)],
      [jumpMs, jumpMs],
    )
    await adoptMachineClock({ ...deps, machine })
    assert.deepEqual(await intervalOf(run.run_id), before)
  })
}
