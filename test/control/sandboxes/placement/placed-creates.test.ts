import assert from 'node:assert/strict'
import { after, before, beforeEach, test } from 'node:test'
import { makeControlDeps } from '../../../../src/control/make-deps.ts'
import { makeAdmitInBatch } from '../../../../src/control/sandboxes/placement/admit-in-batch.ts'
import { makeAdmissionPlacer } from '../../../../src/control/sandboxes/placement/place-admissions.ts'
import { createSandbox } from '../../../../src/control/sandboxes/create-sandbox.ts'
import type { TransitionStep } from '../../../../src/control/sandboxes/transitions/transition-step.ts'
import { makeAnswer } from '../../../../src/control/workers/sync-answer.ts'
import { drainWorker } from '../../../../src/control/workers/fleet.ts'
import { recordReport } from '../../../../src/control/workers/record-report.ts'
import { registerWorker } from '../../../../src/control/workers/worker-join.ts'
import type { WorkerId } from '../../../../src/domain/ids.ts'
import type { Caller } from '../../../../src/domain/orgs/caller.ts'
import type { Sandbox } from '../../../../src/domain/sandboxes/sandbox.ts'
import type { SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import { LARGE_TEXT } from '../../../../src/lib/turns/next-turn.ts'
import { makePlacePendingLoop } from '../../../../src/loops/place-pending.ts'
import { makeTestControl, type TestControl } from '../../../support/control.ts'
import { addLimitedOrg, setLimits } from '../../../support/quota-world.ts'
import { reportOf } from '../../../support/report.ts'
import { PLAIN_SPEC } from '../../../support/spec.ts'

// No loop runs in these tests unless they run it: what has a worker got it in the transaction that created it.

const never = new AbortController().signal
let control: TestControl
before(async () => {
  control = await makeTestControl()
})
after(() => control.close())
beforeEach(async () => {
  await sql('UPDATE runs SET ended_at = now() WHERE ended_at IS NULL')
  await sql('UPDATE workers SET vcpus = 0, lease_expires_at = now()')
  control.deps.admissionPlacer.forget()
})

async function sql<Row extends Record<string, unknown>>(
  text: string,
  values: readonly unknown[] = [],
): Promise<readonly Row[]> {
  return (await control.deps.db.asSystem((q) => q.query<Row>({ text, values }))).rows
}

let reports = 0
const CAPACITY = { vcpus: 4, memory_mib: 1_000_000, disk_mib: 1_000_000 }
const DRIVER = { name: 'test', isolation: 'none', abilities: [], images: [], default_disk_mib: 1 } as const
async function join(name: string, vcpus: number): Promise<WorkerId> {
  const worker_id = await registerWorker(control.deps, { name, credential: `credential-of-${name}` })
  await recordReport(
    control.deps,
    reportOf(worker_id, { seq: ++reports, capacity: { ...CAPACITY, vcpus }, driver: DRIVER }),
  )
  return worker_id
}

type Created = { readonly spec?: Partial<SandboxSpec>; readonly caller?: Caller; readonly waitMs?: number }
function create(
  { spec = {}, caller = control.caller, waitMs }: Created = {},
  deps: TestControl['deps'] = control.deps,
): Promise<Sandbox> {
  const input = { name: null, slug: null, registry: { mode: 'auto' }, start: true, signal: never } as const
  return createSandbox(deps, caller, { ...input, waitMs: waitMs ?? null, spec: { ...PLAIN_SPEC, ...spec } })
}

async function workerOf({ id }: Sandbox): Promise<WorkerId | null> {
  const rows = await sql<{ worker_id: WorkerId | null }>('SELECT worker_id FROM runs WHERE sandbox_id = $1', [id])
  return rows[0]?.worker_id ?? null
}

const placeByLoop = (): Promise<number | null> => makePlacePendingLoop(control.deps).run(never)

test('a create places its run, with the rows and the events that the placement loop would write', async () => {
  const worker = await join('first', 4)
  const steps: TransitionStep[] = []
  const deps = makeControlDeps({ ...control.deps, onTransitions: (some) => steps.push(...some) })
  const sandbox = await create({}, deps)
  assert.deepEqual([sandbox.status, sandbox.status_reason], ['starting', null])
  assert.deepEqual(steps.map(({ request, run_id }) => [request.event, run_id]), [['placed', sandbox.run_id]]) // prettier-ignore
  const [row] = await sql(
    `SELECT s.status, s.status_reason, s.home_worker_id, s.run_id, r.id, r.worker_id, r.placed_at >= r.opened_at AS is_ordered, r.waits_since
     FROM sandboxes s JOIN runs r ON r.sandbox_id = s.id WHERE s.id = $1`,
    [sandbox.id],
  )
  const run = { id: sandbox.run_id, run_id: sandbox.run_id, waits_since: null, is_ordered: true }
  assert.deepEqual(row, { status: 'starting', status_reason: null, home_worker_id: worker, worker_id: worker, ...run })
  const events = await sql<{ event_type: string; payload: object }>(
    'SELECT event_type, payload FROM events WHERE sandbox_id = $1 ORDER BY id',
    [sandbox.id],
  )
  assert.deepEqual(
    events.map(({ event_type }) => event_type),
    ['sandbox_created', 'sandbox_starting', 'sandbox_placed'],
  )
  const { id: sandbox_id, name, run_id } = sandbox
  assert.deepEqual(events[2]?.payload, { sandbox_id, name, run_id, cause: 'placement', worker: 'first' })
})

test('a placed create raises the worker’s generation and notifies its sync, whose answer has the run', async () => {
  const worker = await join('told', 4)
  const generation = async () =>
    (await sql<{ generation: number }>('SELECT generation FROM worker_generations WHERE worker_id = $1', [worker]))[0]
      ?.generation ?? 0
  const earlier = await generation()
  let notified = 0
  const unsubscribe = control.deps.notifications.subscribe(`worker:${worker}`, () => (notified += 1))
  const { run_id } = await create()
  unsubscribe()
  assert.ok((await generation()) > earlier)
  assert.equal(notified, 1)
  const answer = await makeAnswer({ ...control.deps, tickets: { openTickets: () => [] } }, reportOf(worker, { seq: ++reports })) // prettier-ignore
  assert.deepEqual(answer.desired_runs?.map((run) => run.run_id), [run_id]) // prettier-ignore
})

test('creates at the same time, in two processes, never get more of a worker than it has', async () => {
  const worker = await join('contended', 4)
  const other = makeControlDeps(control.deps)
  const made = await Promise.all(Array.from({ length: 16 }, (_, n) => create({}, n % 2 === 0 ? other : control.deps)))
  const placed = await Promise.all(made.map(workerOf))
  const there = placed.filter((one) => one === worker).length
  assert.ok(there > 0 && there <= 4, `${String(there)} runs are on a worker for 4`)
  assert.equal(placed.filter((one) => one === null).length, 16 - there)
})

test('while an older run waits for capacity, a create leaves its run to the loop, which keeps their order', async () => {
  const worker = await join('busy', 2)
  const running = await create({ spec: { resources: { ...PLAIN_SPEC.resources, vcpus: 2 } } })
  assert.equal(await workerOf(running), worker)
  const older = await create()
  await placeByLoop()
  await sql('UPDATE runs SET ended_at = now() WHERE sandbox_id = $1', [running.id])
  const later = await create()
  assert.deepEqual([await workerOf(older), await workerOf(later)], [null, null])
  assert.equal(later.status_reason, 'scheduling')
  await placeByLoop()
  assert.deepEqual([await workerOf(older), await workerOf(later)], [worker, worker])
})

/** A process whose reads of the fleet and reservations are counted. Its snapshot rests until `passRest`. */
function counted() {
  const counts = { fleetReads: 0, reservations: 0 }
  const { db, clock } = control.deps
  const asSystem: typeof db.asSystem = (work) =>
    db.asSystem((q) =>
      work({
        query: (statement) => {
          if (statement.name === 'capacity.listFree') counts.fleetReads += 1
          return q.query(statement)
        },
      }),
    )
  const transaction: typeof db.transaction = (scope, work) => {
    if (scope === 'system') counts.reservations += 1
    return db.transaction(scope, work)
  }
  let ms = 0
  const placerClock = { ...clock, monotonicMs: () => (ms += 100) } // so each read takes 100 ms
  const base = { ...control.deps, db: { ...db, asSystem, transaction } }
  const admissionPlacer = makeAdmissionPlacer({ ...base, clock: placerClock })
  const deps = { ...base, admissionPlacer, admitInBatch: makeAdmitInBatch({ ...base, admissionPlacer }) }
  return { counts, deps, passRest: () => (ms += 10_000) }
}

test('a create is served although another one finds its snapshot of the fleet wrong meanwhile', async () => {
  const worker = await join('raced', 4)
  const { clock, db } = control.deps
  const asSystem: typeof db.asSystem = async (work) => {
    const result = await db.asSystem(work)
    admissionPlacer.forget()
    return result
  }
  const base = { ...control.deps, db: { ...db, asSystem } }
  const admissionPlacer = makeAdmissionPlacer({ ...base, clock })
  const deps = { ...base, admissionPlacer, admitInBatch: makeAdmitInBatch({ ...base, admissionPlacer }) }
  assert.equal(await workerOf(await create({}, deps)), worker)
})

test('while a run waits, creates neither read the fleet beyond its pause nor lock workers in vain', async () => {
  const worker = await join('enough', 4)
  const { counts, deps, passRest } = counted()
  assert.equal(await workerOf(await create({}, deps)), worker)
  const waiting = await create({ spec: { resources: { ...PLAIN_SPEC.resources, vcpus: 8 } } })
  await placeByLoop()
  for (let n = 0; n < 5; n++) assert.equal(await workerOf(await create({}, deps)), null)
  assert.deepEqual(counts, { fleetReads: 1, reservations: 2 }, 'one reservation finds that a run waits')
  passRest()
  for (let n = 0; n < 5; n++) assert.equal(await workerOf(await create({}, deps)), null)
  assert.deepEqual(counts, { fleetReads: 2, reservations: 2 })
  await sql('UPDATE runs SET ended_at = now() WHERE sandbox_id = $1', [waiting.id])
  passRest()
  assert.equal(await workerOf(await create({}, deps)), worker)
})

test('a worker that is drained after the fleet was read gets no run', async () => {
  const worker = await join('drained', 4)
  assert.equal(await workerOf(await create()), worker)
  await drainWorker(control.deps, 'drained', null)
  assert.equal(await workerOf(await create()), null)
})

test('a limit that must be counted leaves the run to the loop', async () => {
  const worker = await join('plain', 4)
  const caller = await addLimitedOrg(control.deps, 'counted', { max_sandboxes: 3 })
  const counted = await create({ caller })
  assert.deepEqual([await workerOf(counted), counted.status_reason], [null, 'scheduling'])
  await placeByLoop()
  assert.equal(await workerOf(counted), worker)
})

test('a large specification leaves the run to the loop, so that no worker is locked while it is written', async () => {
  const worker = await join('unlocked', 4)
  const large = await create({ spec: { env: [{ key: 'A', value: 'v'.repeat(LARGE_TEXT) }] } })
  assert.deepEqual([large.status_reason, await workerOf(large)], ['scheduling', null])
  await placeByLoop()
  assert.equal(await workerOf(large), worker)
})

test('an organization whose creates are counted reserves capacity once, and again after its limits are gone', async () => {
  await join('reserved', 4)
  const caller = await addLimitedOrg(control.deps, 'counted-again', { max_sandboxes: 9 })
  const { db } = control.deps
  let reservations = 0
  const transaction: typeof db.transaction = (scope, work) => {
    if (scope === 'system') reservations += 1
    return db.transaction(scope, work)
  }
  const deps = makeControlDeps({ ...control.deps, db: { ...db, transaction } })
  await create({ caller }, deps)
  assert.equal(reservations, 1)
  await create({ caller }, deps)
  assert.equal(reservations, 1)
  await setLimits(control.deps, caller, { max_sandboxes: null })
  await create({ caller }, deps)
  const placed = await create({ caller }, deps)
  assert.notEqual(await workerOf(placed), null)
  assert.equal(reservations, 2)
})

/** Reports all runs of a worker as running. Returns how many there are. */
async function reportRunning(worker: WorkerId): Promise<number> {
  const known = reportOf(worker, { seq: ++reports })
  const answer = await makeAnswer({ ...control.deps, tickets: { openTickets: () => [] } }, known)
  const observed_runs = (answer.desired_runs ?? []).map(
    ({ run_id, sandbox_id }) => ({ run_id, sandbox_id, phase: 'running' }) as const,
  )
  if (observed_runs.length > 0)
    await recordReport(control.deps, reportOf(worker, { seq: ++reports, capacity: CAPACITY, driver: DRIVER, observed_runs })) // prettier-ignore
  return observed_runs.length
}

test('a create that waits ends with the worker’s report, although its wait begins without a read', async () => {
  const worker = await join('reporting', 4)
  const created = create({ waitMs: 20_000 })
  while ((await reportRunning(worker)) === 0);
  assert.equal((await created).status, 'running')
})

test('a sandbox that runs before its create learns of the commit ends the wait of the create at once', async () => {
  const worker = await join('early', 4)
  const { db, clock } = control.deps
  const transaction: typeof db.transaction = async (scope, work) => {
    const result = await db.transaction(scope, work)
    await reportRunning(worker)
    return result
  }
  // No timer ends the wait: it would read the sandbox too.
  const timeless = { ...clock, sleep: () => new Promise<never>(() => undefined) }
  const deps = makeControlDeps({ ...control.deps, clock: timeless, db: { ...db, transaction } })
  assert.equal((await create({ waitMs: 20_000 }, deps)).status, 'running')
})
