import assert from 'node:assert/strict'
import { after, before, beforeEach, test } from 'node:test'
import { createSnapshot } from '../../../src/control/snapshots/create-snapshot.ts'
import { deleteSnapshot } from '../../../src/control/snapshots/delete-snapshot.ts'
import { forkSandbox } from '../../../src/control/snapshots/fork-sandbox.ts'
import { getSnapshotOperation, listSnapshots } from '../../../src/control/snapshots/read-snapshots.ts'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import { removeWorker } from '../../../src/control/workers/fleet.ts'
import type { SandboxId, SnapshotOperationId } from '../../../src/domain/ids.ts'
import { Problem } from '../../../src/domain/problem.ts'
import type { Snapshot } from '../../../src/domain/snapshots/snapshot.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import type { Driver } from '../../../src/worker/drivers/driver.ts'
import { behaviourByImage } from '../../../src/worker/drivers/simulated-behaviour.ts'
import { makeSimulatedDriver } from '../../../src/worker/drivers/simulated.ts'
import { makeSimulatedWorld, type SimulatedWorld } from '../../../src/worker/drivers/simulated-world.ts'
import { addOrg } from '../../support/orgs.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'
import { waitUntil } from '../../support/wait.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'

// Snapshots by a real worker's agent with simulated disks.

let world: WorkerWorld
let machine: SimulatedWorld
const SIGNAL = new AbortController().signal
before(async () => {
  world = await makeWorkerWorld()
})
after(() => world.close())
beforeEach(() => {
  machine = makeSimulatedWorld()
})

function makeDriver(): Driver {
  const failing = {
    image: /\/fails:/,
    behaviour: { startFailure: { reason: 'image', message: 'no such image' } },
  } as const
  return makeSimulatedDriver({ clock: systemClock, world: machine, behaviourOf: behaviourByImage([failing]) })
}

async function runningSandbox(): Promise<SandboxId> {
  const { id } = await world.create()
  await waitUntil(async () => (await world.statusOf(id)).status === 'running')
  return id
}

function begin(sandbox_id: SandboxId, name: string, replaces = false): Promise<Snapshot> {
  const { deps, caller } = world.control
  const how = { labels: {}, replaces, records_integrity: false }
  return createSnapshot(deps, caller, { ...how, sandbox_id, name })
}

const read = (id: SnapshotOperationId): Promise<Snapshot> =>
  getSnapshotOperation(world.control.deps, world.control.caller, id)

async function ended(id: SnapshotOperationId): Promise<Snapshot> {
  return await waitUntil(async () => {
    const found = await read(id)
    return found.completed_at !== null && found
  })
}

test('an operation is queued, then in progress while the worker copies, then it has succeeded', async () => {
  const driver = makeDriver()
  const { promise: copied, resolve: finish } = Promise.withResolvers<undefined>()
  const { snapshots } = driver
  assert.ok(snapshots)
  const slow: Driver = {
    ...driver,
    snapshots: { ...snapshots, take: async (task) => await copied.then(() => snapshots.take(task)) },
  }
  const end = world.runWorker(slow)
  const id = await runningSandbox()
  const { operation_id, status } = await begin(id, 'states')
  assert.equal(status, 'queued')
  await waitUntil(async () => (await read(operation_id)).status === 'in_progress')
  assert.deepEqual(
    (await listSnapshots(world.control.deps, world.control.caller, { cursor: null, limit: 9 })).items,
    [],
  )
  finish(undefined)
  assert.equal((await ended(operation_id)).status, 'succeeded')
  await end()
})

test('a snapshot that takes the place of another one leaves the event that the other one was deleted', async () => {
  const end = world.runWorker(makeDriver())
  const id = await runningSandbox()
  const first = await ended((await begin(id, 'replaced')).operation_id)
  const second = await ended((await begin(id, 'replaced', true)).operation_id)
  await end()
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<{ readonly type: string; readonly snapshot: string }>({
      text: `SELECT event_type AS type, payload ->> 'snapshot_id' AS snapshot FROM events WHERE payload ->> 'name' = 'replaced' ORDER BY id`,
    }),
  )
  assert.deepEqual(
    rows.map(({ type, snapshot }) => [type, snapshot]),
    [
      ['snapshot_requested', first.id],
      ['snapshot_created', first.id],
      ['snapshot_requested', second.id],
      ['snapshot_deleted', first.id],
      ['snapshot_created', second.id],
    ],
  )
})

test('an organization that asks for many snapshots delays no other one', async () => {
  const driver = makeDriver()
  const { deps } = world.control
  const { snapshots } = driver
  assert.ok(snapshots)
  const { promise: released, resolve: release } = Promise.withResolvers<undefined>()
  let greedy: SandboxId | null = null
  const slow: Driver = {
    ...driver,
    snapshots: {
      ...snapshots,
      take: async (task) => {
        if (task.sandbox_id === greedy) await released
        return await snapshots.take(task)
      },
    },
  }
  const end = world.runWorker(slow)
  const id = await runningSandbox()
  greedy = id
  const asked = await Promise.all(Array.from({ length: 6 }, (_, n) => begin(id, `many-${String(n)}`)))
  const other = await addOrg(deps, 'other')
  const how = {
    name: 'other',
    slug: null,
    registry: { mode: 'auto' },
    start: true,
    waitMs: null,
    signal: SIGNAL,
  } as const
  const theirs = await createSandbox(deps, other, { ...how, spec: PLAIN_SPEC })
  await waitUntil(async () => (await world.statusOf(theirs.id)).status === 'running')
  const wanted = { sandbox_id: theirs.id, name: 'one', labels: {}, replaces: false, records_integrity: false }
  const { operation_id } = await createSnapshot(deps, other, wanted)
  await waitUntil(async () => (await getSnapshotOperation(deps, other, operation_id)).status === 'succeeded')
  const open = await Promise.all(asked.map((one) => read(one.operation_id)))
  assert.ok(open.every(({ completed_at }) => completed_at === null))
  release(undefined)
  for (const one of asked) assert.equal((await ended(one.operation_id)).status, 'succeeded')
  await end()
})

test('snapshots that were queued together stop where the storage of the organization is used up', async () => {
  const driver = makeDriver()
  const { snapshots } = driver
  assert.ok(snapshots)
  const large: Driver = {
    ...driver,
    snapshots: { ...snapshots, take: async (task) => ({ ...(await snapshots.take(task)), taken_bytes: 2 ** 29 }) },
  }
  const { deps, caller } = world.control
  await setOverrides({ max_total_storage_gib: 1 })
  const end = world.runWorker(large)
  const id = await runningSandbox()
  const asked = await Promise.all([1, 2, 3, 4].map((n) => begin(id, `large-${String(n)}`)))
  const made = await Promise.all(asked.map((one) => ended(one.operation_id)))
  assert.equal(made.filter(({ status }) => status === 'succeeded').length, 2)
  const codes = made.flatMap(({ error }) => error?.code ?? [])
  assert.deepEqual(codes, ['quota_exceeded', 'quota_exceeded'])
  for (const one of made) if (one.status === 'succeeded') await deleteSnapshot(deps, caller, { id: one.id })
  await setOverrides({})
  await end()
})

/** Sets the limits of the organization without the check that all workers enforce them on volumes, too. */
async function setOverrides(overrides: object): Promise<void> {
  const { deps, caller } = world.control
  const text = 'UPDATE orgs SET quota_overrides = $2 WHERE id = $1'
  await deps.db.asSystem((q) => q.query({ text, values: [caller.org_id, JSON.stringify(overrides)] }))
}

test('a snapshot of a sandbox whose start failed says that there is no disk, and a fork is refused for it', async () => {
  const end = world.runWorker(makeDriver())
  const { id } = await world.create({ image: 'registry.example/fails:1' })
  await waitUntil(async () => (await world.statusOf(id)).status === 'failed')
  const { error, status } = await ended((await begin(id, 'no-disk')).operation_id)
  assert.deepEqual([status, error?.code], ['failed', 'no_disk'])
  const { deps, caller } = world.control
  const forked = forkSandbox(deps, caller, { sandbox_id: id, count: 1, name: null, signal: SIGNAL })
  await assert.rejects(forked, (problem) => problem instanceof Problem && problem.code === 'invalid_state_transition')
  await end()
})

test('a driver without snapshots refuses them with the reason', async () => {
  const { snapshots: _none, ...driver } = makeDriver()
  const end = world.runWorker(driver)
  const id = await runningSandbox()
  const { error } = await ended((await begin(id, 'unsupported')).operation_id)
  assert.deepEqual(error, { code: 'unsupported', message: "this worker's driver can't make snapshots of disks" })
  await end()
})

test('the data of a deleted snapshot goes, and that of a fork once its sandboxes have started', async () => {
  const end = world.runWorker(makeDriver())
  const { deps, caller } = world.control
  const id = await runningSandbox()
  const { id: snapshot, operation_id } = await begin(id, 'deleted')
  await ended(operation_id)
  assert.deepEqual([...machine.snapshots], [snapshot])
  await deleteSnapshot(deps, caller, { id: snapshot })
  await waitUntil(() => machine.snapshots.size === 0)
  const forks = await forkSandbox(deps, caller, { sandbox_id: id, count: 3, name: null, signal: SIGNAL })
  assert.equal(forks.length, 3)
  await waitUntil(() => machine.snapshots.size === 0)
  await end()
})

test('the data of a deleted snapshot goes even if the run that made a disk from it is no longer kept', async () => {
  const end = world.runWorker(makeDriver())
  const { deps, caller } = world.control
  const { id: snapshot_id, operation_id } = await begin(await runningSandbox(), 'copied')
  const { worker_id } = await ended(operation_id)
  const how = { name: 'copy', slug: null, registry: { mode: 'auto' }, start: true, waitMs: null } as const
  const origin = { id: snapshot_id, worker_id }
  const { id } = await createSandbox(deps, caller, { ...how, spec: PLAIN_SPEC, origin, signal: SIGNAL })
  await waitUntil(async () => (await world.statusOf(id)).status === 'running')
  await stopSandbox(deps, caller, { id })
  await waitUntil(async () => (await world.statusOf(id)).status === 'stopped')
  await deps.db.asSystem((q) => q.query({ text: 'DELETE FROM runs WHERE sandbox_id = $1', values: [id] }))
  await deleteSnapshot(deps, caller, { id: snapshot_id })
  await waitUntil(() => machine.snapshots.size === 0)
  await end()
})

test('a worker with snapshots is in use; its removal by force hides them, with an event each', async () => {
  const end = world.runWorker(makeDriver())
  const { deps, caller } = world.control
  const { operation_id } = await begin(await runningSandbox(), 'of-removed')
  const { id } = await ended(operation_id)
  await end()
  await assert.rejects(removeWorker(deps, 'w1', 'unused'), /snapshots \(.*of-removed/)
  await removeWorker(deps, 'w1', 'force')
  const { rowCount } = await deps.db.asSystem((q) =>
    q.query({
      text: `SELECT FROM events WHERE event_type = 'snapshot_deleted' AND payload ->> 'snapshot_id' = $1`,
      values: [id],
    }),
  )
  assert.equal(rowCount, 1)
  assert.deepEqual((await listSnapshots(deps, caller, { cursor: null, limit: 9 })).items, [])
})
