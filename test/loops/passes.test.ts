import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { createSandbox } from '../../src/control/sandboxes/create-sandbox.ts'
import { drainWorker, resumeWorker } from '../../src/control/workers/fleet.ts'
import { moveSandbox } from '../../src/control/sandboxes/transitions/transition.ts'
import { SYSTEM_ACTOR } from '../../src/domain/orgs/caller.ts'
import { registerWorker } from '../../src/control/workers/worker-join.ts'
import { recordReport } from '../../src/control/workers/record-report.ts'
import type { SandboxId, WorkerId } from '../../src/domain/ids.ts'
import { WORKER_LEASE_MS } from '../../src/domain/workers/lease.ts'
import { makeDetectLostWorkersLoop } from '../../src/loops/detect-lost-workers.ts'
import { makeEnforceDeadlinesLoop } from '../../src/loops/enforce-deadlines.ts'
import { makeEnforceHardLimitsLoop } from '../../src/loops/enforce-hard-limits.ts'
import { makePlacePendingLoop } from '../../src/loops/place-pending.ts'
import { makeFinishDeparturesLoop } from '../../src/loops/finish-departures.ts'
import { makeTestControl, type TestControl } from '../support/control.ts'
import { PLAIN_SPEC } from '../support/spec.ts'
import { makeTestClock, type TestClock } from '../support/test-clock.ts'
import { reportOf } from '../support/report.ts'

const never = new AbortController().signal
let clock: TestClock
let control: TestControl
before(async () => {
  clock = makeTestClock()
  control = await makeTestControl({ clock, leavesPlacementToLoop: true })
})
after(() => control.close())

let reports = 0
async function join(name: string, vcpus: number): Promise<WorkerId> {
  const { deps } = control
  const worker_id = await registerWorker(deps, { name, credential: `credential-of-${name}` })
  const capacity = { vcpus, memory_mib: 1_000_000, disk_mib: 1_000_000 }
  await recordReport(deps, reportOf(worker_id, { seq: ++reports, capacity }))
  return worker_id
}

async function create(
  changes: { readonly vcpus?: number; readonly max_duration_secs?: number } = {},
): Promise<SandboxId> {
  const { vcpus = 1, max_duration_secs = null } = changes
  const spec = {
    ...PLAIN_SPEC,
    resources: { ...PLAIN_SPEC.resources, vcpus },
    lifecycle: { ...PLAIN_SPEC.lifecycle, max_duration_secs },
  }
  const registry = { mode: 'auto' } as const
  const input = { spec, name: null, slug: null, registry, start: true, waitMs: null, signal: never }
  return (await createSandbox(control.deps, control.caller, input)).id
}

async function sandboxStateOf(id: SandboxId): Promise<{ readonly status: string; readonly worker_id: string | null }> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ readonly status: string; readonly worker_id: string | null }>({
      text: `SELECT s.status, r.worker_id FROM sandboxes s LEFT JOIN runs r ON r.sandbox_id = s.id AND r.ended_at IS NULL
             WHERE s.id = $1`,
      values: [id],
    }),
  )
  const [row] = rows
  assert.ok(row)
  return row
}

const cause = { actor: SYSTEM_ACTOR, code: 'worker_report' } as const
async function move(id: SandboxId, event: 'worker_running' | 'stop_requested' | 'worker_stopped'): Promise<void> {
  await moveSandbox(control.deps, { sandbox_id: id, run_id: null, event, cause })
}

/** Ends all runs, so that no test sees the runs of another one. */
async function clear(): Promise<void> {
  await control.deps.db.asSystem((q) => q.query({ text: 'UPDATE runs SET ended_at = now() WHERE ended_at IS NULL' }))
}

test('runs that fit nowhere do not block later runs that fit', async () => {
  await clear()
  await join('small', 2)
  await Promise.all(Array.from({ length: 510 }, () => create({ vcpus: 64 })))
  const late = await create()
  await makePlacePendingLoop(control.deps).run(never)
  assert.notEqual((await sandboxStateOf(late)).worker_id, null)
})

test('a sandbox starts again on the worker with its disk, and waits for it', async () => {
  await clear()
  const home = await join('home', 1)
  await control.deps.db.asSystem((q) => q.query({ text: `UPDATE workers SET vcpus = 0 WHERE name <> 'home'` }))
  const id = await create()
  await makePlacePendingLoop(control.deps).run(never)
  assert.equal((await sandboxStateOf(id)).worker_id, home)
  await move(id, 'worker_running')
  await move(id, 'stop_requested')
  await move(id, 'worker_stopped')
  await join('large', 1_000)
  const other = await create()
  await control.deps.db.asSystem((q) => q.query({ text: `UPDATE workers SET vcpus = 0 WHERE name = 'home'` }))
  await moveSandbox(control.deps, { sandbox_id: id, run_id: null, event: 'start_admitted', cause })
  await makePlacePendingLoop(control.deps).run(never)
  assert.equal((await sandboxStateOf(id)).worker_id, null)
  assert.notEqual((await sandboxStateOf(other)).worker_id, home)
  await join('home', 1)
  await makePlacePendingLoop(control.deps).run(never)
  assert.equal((await sandboxStateOf(id)).worker_id, home)
})

test('a sandbox that can’t be moved does not block the next ones', async () => {
  await clear()
  await join('large', 1_000)
  const [broken, next] = [await create(), await create()]
  const { deps } = control
  await control.asOwner(
    `ALTER TABLE sandboxes ADD CONSTRAINT broken CHECK (id <> '${broken}' OR home_worker_id IS NULL)`,
  )
  try {
    await makePlacePendingLoop({ ...deps, log: { ...deps.log, error: () => undefined } }).run(never)
  } finally {
    await control.asOwner('ALTER TABLE sandboxes DROP CONSTRAINT broken')
  }
  assert.equal((await sandboxStateOf(broken)).worker_id, null)
  assert.notEqual((await sandboxStateOf(next)).worker_id, null)
})

test('runs that fail to stop do not block the stops of later ones', async () => {
  await clear()
  const worker = await join('large', 1_000)
  const deps = { ...control.deps, log: { ...control.deps.log, error: () => undefined } }
  for (let made = 0; made < 500; made += 100) await Promise.all(Array.from({ length: 100 }, () => create()))
  const later = [await create(), await create(), await create()] as const
  await makePlacePendingLoop(deps).run(never)
  const system = (text: string, ...values: readonly unknown[]) => deps.db.asSystem((q) => q.query({ text, values }))
  const now = clock.now()
  const reasons = [
    () => drainWorker(deps, 'large', 0),
    () => system('UPDATE orgs SET suspended_at = $1', now),
    () => system('UPDATE runs SET deadline_at = $1 WHERE ended_at IS NULL', now),
  ]
  const loops = [makeFinishDeparturesLoop(deps), makeEnforceHardLimitsLoop(deps), makeEnforceDeadlinesLoop(deps)]
  for (const [at, loop] of loops.entries()) {
    const movable = later.slice(0, at + 1).map((id) => `'${id}'`)
    await control.asOwner(
      `ALTER TABLE sandboxes ADD CONSTRAINT broken CHECK (status <> 'stopping' OR id IN (${movable.join()})) NOT VALID`,
    )
    try {
      await reasons[at]?.()
      await loop.run(never)
    } finally {
      await control.asOwner('ALTER TABLE sandboxes DROP CONSTRAINT broken')
      await resumeWorker(deps, 'large')
      await system('UPDATE orgs SET suspended_at = NULL')
    }
    const states = await Promise.all(later.map(sandboxStateOf))
    const asked = states.map(({ status }) => status === 'stopping')
    assert.deepEqual(asked, [true, at > 0, at > 1], loop.name)
    assert.ok(states.every(({ worker_id }) => worker_id === worker))
  }
})

test('a run is stopped when its maximum duration is over and not before, and the loop schedules its next pass for that time', async () => {
  await clear()
  await join('large', 1_000)
  const { deps } = control
  const loop = makeEnforceDeadlinesLoop(deps)
  assert.equal(await loop.run(never), null)
  const id = await create({ max_duration_secs: 60 })
  await makePlacePendingLoop(deps).run(never)
  await move(id, 'worker_running')
  assert.equal(await loop.run(never), 60_000)
  clock.advance(59_999)
  assert.equal(await loop.run(never), 1)
  assert.equal((await sandboxStateOf(id)).status, 'running')
  clock.advance(1)
  assert.equal(await loop.run(never), 0, 'it looks at once whether others are due')
  assert.equal((await sandboxStateOf(id)).status, 'stopping')
  assert.equal(await loop.run(never), null)
})

test('after the control plane was paused or lost its database, no worker is marked lost for one lease', async () => {
  await clear()
  const { deps } = control
  let isAway = false
  const asSystem: typeof deps.db.asSystem = (fn) => (isAway ? Promise.reject(new Error('away')) : deps.db.asSystem(fn))
  const loop = makeDetectLostWorkersLoop({ ...deps, db: { ...deps.db, asSystem } })
  const listen = async (ms: number): Promise<void> => {
    for (let passed = 0; passed < ms; passed += 2_000) {
      clock.advance(2_000)
      await loop.run(never)
    }
  }
  await listen(WORKER_LEASE_MS)
  await join('steady', 1_000)
  const id = await create()
  await makePlacePendingLoop(deps).run(never)
  clock.advance(10 * WORKER_LEASE_MS) // as if the machine had been suspended
  await loop.run(never)
  await listen(WORKER_LEASE_MS - 4_000)
  assert.equal((await sandboxStateOf(id)).status, 'starting')
  isAway = true
  clock.advance(2_000)
  await assert.rejects(async () => loop.run(never), /away/)
  isAway = false
  await listen(WORKER_LEASE_MS - 2_000)
  assert.equal((await sandboxStateOf(id)).status, 'starting')
  await listen(4_000)
  assert.equal((await sandboxStateOf(id)).status, 'failed')
})
