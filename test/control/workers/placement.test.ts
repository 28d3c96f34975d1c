import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, beforeEach, test } from 'node:test'
import { explainWaiting, makeReadFleet } from '../../../src/control/workers/explain-waiting.ts'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import { startSandbox } from '../../../src/control/sandboxes/start-sandbox.ts'
import { listWorkers } from '../../../src/control/workers/fleet.ts'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { getSandbox } from '../../../src/control/sandboxes/read-sandboxes.ts'
import { moveAll } from '../../../src/control/sandboxes/transitions/transition-batches.ts'
import { moveSandbox } from '../../../src/control/sandboxes/transitions/transition.ts'
import { SYSTEM_ACTOR } from '../../../src/domain/orgs/caller.ts'
import { registerWorker } from '../../../src/control/workers/worker-join.ts'
import { recordReport } from '../../../src/control/workers/record-report.ts'
import { asId, type RunId, type SandboxId, type SnapshotId, type WorkerId } from '../../../src/domain/ids.ts'
import type { SandboxSpec } from '../../../src/domain/spec/spec.ts'
import type { TransitionEvent } from '../../../src/domain/sandboxes/lifecycle.ts'
import { makePlacePendingLoop } from '../../../src/loops/place-pending.ts'
import { pruneRuns } from '../../../src/store/sandboxes/prune-sandboxes.ts'
import * as waitingRuns from '../../../src/store/workers/waiting-runs.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { reportOf } from '../../support/report.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'

// Placement over a real database. test/domain/workers/placement.test.ts tests the pure rule.

const never = new AbortController().signal
const cause = { actor: SYSTEM_ACTOR, code: 'placement' } as const
let control: TestControl
before(async () => {
  control = await makeTestControl({ leavesPlacementToLoop: true })
})
after(() => control.close())
beforeEach(async () => {
  await sql('UPDATE runs SET ended_at = now() WHERE ended_at IS NULL')
  await sql('UPDATE workers SET vcpus = 0, lease_expires_at = now()')
})

async function sql<Row extends Record<string, unknown>>(
  text: string,
  values: readonly unknown[] = [],
): Promise<readonly Row[]> {
  return (await control.deps.db.asSystem((q) => q.query<Row>({ text, values }))).rows
}

let reports = 0
const DEFAULT_DISK_MIB = 40
type Offered = {
  readonly vcpus: number
  readonly memory_mib?: number
  readonly disk_mib?: number | null
  readonly images?: readonly string[]
}
async function join(name: string, offered: Offered): Promise<WorkerId> {
  const { vcpus, memory_mib = 100_000, disk_mib = 1_000_000, images = [] } = offered
  const worker_id = await registerWorker(control.deps, { name, credential: `credential-of-${name}` })
  const capacity = { vcpus, memory_mib, disk_mib }
  const driver = {
    name: 'test',
    isolation: 'none',
    abilities: ['disk_size', 'snapshots'] as const,
    images,
    default_disk_mib: DEFAULT_DISK_MIB,
  }
  await recordReport(control.deps, reportOf(worker_id, { seq: ++reports, capacity, driver }))
  return worker_id
}

async function create(spec: Partial<SandboxSpec> = {}, vcpus = 1, origin?: WorkerId): Promise<SandboxId> {
  const resources = { memory_mib: 100, vcpus, disk_size_mib: null }
  const input = {
    name: null,
    slug: null,
    registry: { mode: 'auto' },
    start: true,
    waitMs: null,
    signal: never,
    ...(origin === undefined ? {} : { origin: { id: asId<SnapshotId>(randomUUID()), worker_id: origin } }),
  } as const
  return (await createSandbox(control.deps, control.caller, { ...input, spec: { ...PLAIN_SPEC, resources, ...spec } }))
    .id
}

async function runOf(id: SandboxId): Promise<{ readonly id: RunId; readonly worker_id: WorkerId | null }> {
  const [run] = await sql<{ id: RunId; worker_id: WorkerId | null }>(
    'SELECT id, worker_id FROM runs WHERE sandbox_id = $1 AND ended_at IS NULL',
    [id],
  )
  assert.ok(run)
  return run
}

async function placeOn(worker: WorkerId, ids: readonly SandboxId[]): Promise<void> {
  const requests = await Promise.all(
    ids.map(async (id) => ({
      sandbox_id: id,
      run_id: (await runOf(id)).id,
      event: 'placed' as const,
      cause,
      worker: { id: worker, name: 'w' },
    })),
  )
  assert.equal(await moveAll(control.deps, requests), 0)
}

const countOn = async (worker: WorkerId): Promise<number> =>
  (await sql('SELECT id FROM runs WHERE worker_id = $1 AND ended_at IS NULL', [worker])).length

test('however many passes place runs at the same time, each by its own fleet snapshot, no worker gets more than its capacity', async () => {
  const worker = await join('contended', { vcpus: 7 })
  const ids = await Promise.all(Array.from({ length: 40 }, () => create()))
  await Promise.all([0, 10, 20, 30].map((from) => placeOn(worker, ids.slice(from, from + 10))))
  assert.equal(await countOn(worker), 7)
  const [stopped] = await sql<{ sandbox_id: SandboxId }>('SELECT sandbox_id FROM runs WHERE worker_id = $1', [worker])
  assert.ok(stopped)
  for (const event of ['stop_requested', 'worker_stopped'] as const)
    await moveSandbox(control.deps, { sandbox_id: stopped.sandbox_id, run_id: null, event, cause })
  await placeOn(worker, (await Promise.all(ids.map(async (id) => ({ id, run: id === stopped.sandbox_id ? null : await runOf(id) })))).flatMap(({ id, run }) => (run?.worker_id === null ? [id] : []))) // prettier-ignore
  assert.equal(await countOn(worker), 7, 'what was freed is given once')
})

test('a worker that is drained, removed or past its lease gets no run, even if the fleet snapshot still lists it', async () => {
  const drained = await join('drained', { vcpus: 10 })
  const removed = await join('removed', { vcpus: 10 })
  const silent = await join('silent', { vcpus: 10 })
  await sql('UPDATE workers SET draining_since = now() WHERE id = $1', [drained])
  await sql('UPDATE workers SET removed_at = now() WHERE id = $1', [removed])
  await sql(`UPDATE workers SET lease_expires_at = now() - interval '1 s' WHERE id = $1`, [silent])
  const id = await create()
  for (const worker of [drained, removed, silent]) await placeOn(worker, [id])
  await makePlacePendingLoop(control.deps).run(never)
  assert.equal((await runOf(id)).worker_id, null)
  assert.equal((await getSandbox(control.deps, control.caller, { id })).status_reason, 'insufficient_capacity')
})

test('among workers with enough capacity, one that holds the image is chosen, however the request spells it', async () => {
  await join('other', { vcpus: 10, memory_mib: 1_000 })
  const holder = await join('holder', { vcpus: 10, images: ['registry.example/box:latest'] })
  const id = await create({ image: 'box' })
  await makePlacePendingLoop(control.deps).run(never)
  assert.equal((await runOf(id)).worker_id, holder)
})

test('with the policy `spread`, runs of equal size go to different workers', async () => {
  const workers = [await join('a', { vcpus: 10 }), await join('b', { vcpus: 10 }), await join('c', { vcpus: 10 })]
  await Promise.all(workers.map(() => create()))
  const settings = { ...control.deps.settings, placement: 'spread' } as const
  await makePlacePendingLoop({ ...control.deps, settings }).run(never)
  assert.deepEqual(await Promise.all(workers.map(countOn)), [1, 1, 1])
})

test('waiting runs are placed, the oldest first, when capacity is freed; new runs are placed even by an old fleet snapshot', async () => {
  const worker = await join('full', { vcpus: 2 })
  // Each reading of this clock advances it, so reading the fleet seems slow, and a pass reuses the earlier snapshot.
  let nowMs = 0
  const clock = { ...control.deps.clock, monotonicMs: () => (nowMs += 100) }
  const loop = makePlacePendingLoop({ ...control.deps, clock })
  const [holder, first, second] = [await create(), await create({}, 2), await create({}, 2)]
  assert.equal(await loop.run(never), null)
  assert.equal((await runOf(holder)).worker_id, worker)
  const small = await create()
  assert.notEqual(
    await loop.run(never),
    null,
    'the loop runs again once it may read a new fleet snapshot, because runs still wait',
  )
  assert.equal((await runOf(small)).worker_id, worker)
  for (const id of [holder, small])
    for (const event of ['stop_requested', 'worker_stopped'] as const)
      await moveSandbox(control.deps, { sandbox_id: id, run_id: null, event, cause })
  while ((await loop.run(never)) !== null) assert.ok(nowMs < 10_000)
  assert.equal((await runOf(first)).worker_id, worker)
  assert.equal((await runOf(second)).worker_id, null)
})

test('a waiting sandbox shows its position, what is missing and the largest free capacity; any other shows nothing', async () => {
  await join('small', { vcpus: 2 })
  const [running, first, second] = [await create(), await create({}, 3), await create({}, 4)]
  await makePlacePendingLoop(control.deps).run(never)
  assert.equal(await explainWaiting(control.deps, running), null)
  const told = await explainWaiting(control.deps, second)
  assert.deepEqual(told, {
    position: 2,
    waiting: 2,
    missing: [{ kind: 'resource', name: 'vcpus', requested: 4, largest_free: 1, accepted: null }],
    largest_free: { vcpus: 1, memory_mib: 99_900, disk_mib: 1_000_000 - DEFAULT_DISK_MIB },
  })
  assert.equal((await explainWaiting(control.deps, first))?.position, 1)
})

test('waiting runs are counted only up to the limit', async () => {
  const ids = [await create({}, 64), await create({}, 64), await create({}, 64), await create({}, 64)]
  await makePlacePendingLoop(control.deps).run(never)
  const found = await Promise.all(ids.map((id) => control.deps.db.asSystem((q) => waitingRuns.findWaiting(q, id, 2))))
  assert.deepEqual(
    found.map((run) => [run?.position ?? 0, run?.waiting]).toSorted(([one = 0], [other = 0]) => one - other),
    [
      [1, 3],
      [2, 3],
      [3, 3],
      [3, 3],
    ],
  )
})

/** A pass that reads the fleet, as that of a new leader. */
const pass = (): Promise<number | null> => makePlacePendingLoop(control.deps).run(never)

/** Creates a sandbox with a disk of this size, or with the worker's default if null. */
function createWithDisk(disk_size_mib: number | null): Promise<SandboxId> {
  return create({ resources: { memory_mib: 100, vcpus: 1, disk_size_mib } })
}

async function move(id: SandboxId, ...events: readonly TransitionEvent[]): Promise<void> {
  for (const event of events) await moveSandbox(control.deps, { sandbox_id: id, run_id: null, event, cause })
}

const end = (id: SandboxId): Promise<void> => move(id, 'stop_requested', 'worker_stopped')

/** The sum of the disks on a worker, and its disk capacity, as `worker list` shows them. */
async function diskOf(worker: WorkerId): Promise<readonly [used: number, capacity: number | null]> {
  for await (const one of listWorkers(control.deps)) if (one.id === worker) return [one.used_disk_mib, one.disk_mib]
  throw new Error('the worker is not listed')
}

test('a worker gets disks up to its capacity, from however many passes, and a default disk counts with its default size', async () => {
  const worker = await join('disks', { vcpus: 100, disk_mib: 5 * DEFAULT_DISK_MIB })
  const sized = await Promise.all(Array.from({ length: 4 }, () => createWithDisk(2 * DEFAULT_DISK_MIB)))
  const plain = await Promise.all(Array.from({ length: 4 }, () => createWithDisk(null)))
  await Promise.all([sized.slice(0, 2), sized.slice(2)].map((some) => placeOn(worker, some)))
  assert.equal(await countOn(worker), 2)
  await Promise.all([plain.slice(0, 2), plain.slice(2)].map((some) => placeOn(worker, some)))
  assert.equal(await countOn(worker), 3)
  assert.deepEqual(await diskOf(worker), [5 * DEFAULT_DISK_MIB, 5 * DEFAULT_DISK_MIB])
})

test('the disk of a stopped sandbox still counts, its own restart takes no more, and its deletion frees it', async () => {
  const worker = await join('kept', { vcpus: 100, disk_mib: 100 })
  const [kept, waiting] = [await createWithDisk(80), await createWithDisk(60)]
  await pass()
  assert.equal((await runOf(kept)).worker_id, worker)
  await end(kept)
  await pass()
  assert.deepEqual([(await runOf(waiting)).worker_id, await diskOf(worker)], [null, [80, 100]])
  const [missing] =
    (await explainWaiting({ ...control.deps, readFleet: makeReadFleet(control.deps) }, waiting))?.missing ?? []
  assert.deepEqual([missing?.name, missing?.requested, missing?.largest_free], ['disk_mib', 60, 20])
  assert.match(missing?.accepted ?? '', /SANDYARD_DISK_OVERCOMMIT/)
  await startSandbox(control.deps, control.caller, { id: kept }, { waitMs: null, signal: never })
  await pass()
  assert.equal((await runOf(kept)).worker_id, worker)
  assert.deepEqual(await diskOf(worker), [80, 100])

  await deleteSandbox(control.deps, control.caller, { id: kept })
  await pass()
  assert.deepEqual([(await runOf(waiting)).worker_id, await diskOf(worker)], [null, [80, 100]], 'its run is stopping')
  await moveSandbox(control.deps, { sandbox_id: kept, run_id: null, event: 'worker_stopped', cause })
  await pass()
  assert.deepEqual([(await runOf(waiting)).worker_id, await diskOf(worker)], [worker, [60, 100]])
})

test('a restart waits for vCPUs like any run, even if its worker has more disks than its capacity', async () => {
  const worker = await join('over', { vcpus: 1, disk_mib: 100 })
  const kept = await createWithDisk(90)
  await pass()
  await end(kept)
  await sql('UPDATE workers SET disk_mib = 10, vcpus = 0 WHERE id = $1', [worker])
  await startSandbox(control.deps, control.caller, { id: kept }, { waitMs: null, signal: never })
  const other = await createWithDisk(50)
  await pass()
  assert.equal((await runOf(kept)).worker_id, null)
  await sql('UPDATE workers SET vcpus = 9 WHERE id = $1', [worker])
  await pass()
  assert.deepEqual([(await runOf(kept)).worker_id, (await runOf(other)).worker_id], [worker, null])
})

test('a worker without a limit takes every disk, and so does one of a version that reports no default size', async () => {
  const unlimited = await join('unlimited', { vcpus: 1, disk_mib: null })
  const first = await createWithDisk(60_000)
  await pass()
  assert.deepEqual([(await runOf(first)).worker_id, await diskOf(unlimited)], [unlimited, [60_000, null]])
  const earlier = await join('earlier', { vcpus: 1, disk_mib: 7 })
  await sql(`UPDATE workers SET driver = driver - 'default_disk_mib' WHERE id = $1`, [earlier])
  const second = await createWithDisk(null)
  const third = await createWithDisk(60)
  await pass()
  assert.deepEqual([(await runOf(second)).worker_id, await diskOf(earlier)], [earlier, [0, null]])
  await end(second)
  await pass()
  assert.equal((await runOf(third)).worker_id, earlier)
})

test('a sandbox made from a snapshot waits for its home once a run was placed there, even if none was seen to run', async () => {
  const home = await join('with-snapshot', { vcpus: 1 })
  await join('without-snapshot', { vcpus: 9 })
  const id = await create({}, 1, home)
  await pass()
  assert.equal((await runOf(id)).worker_id, home)
  await end(id) // its worker never reported that it ran
  await sql('UPDATE workers SET vcpus = 0 WHERE id = $1', [home])
  await restart(id)
  await pass()
  assert.equal((await runOf(id)).worker_id, null)
})

test('that a sandbox has a disk at its home outlives the run that made the disk', async () => {
  const home = await join('with-snapshot', { vcpus: 1 })
  await join('without-snapshot', { vcpus: 9 })
  const id = await create({}, 1, home)
  await pass()
  const { id: first } = await runOf(id)
  await move(id, 'worker_running', 'stop_requested', 'worker_stopped')
  await restart(id)
  await pass()
  await move(id, 'worker_start_failed')
  await restart(id)
  await sql('UPDATE workers SET vcpus = 0 WHERE id = $1', [home])
  await sql('UPDATE runs SET rolled_up_at = ended_at WHERE id = $1', [first])
  const before = new Date(control.deps.clock.now().getTime() + 60_000)
  await control.deps.db.asSystem((q) => pruneRuns(q, { before, after: null, limit: 10_000, now: before }))
  assert.deepEqual(await sql('SELECT id FROM runs WHERE id = $1', [first]), [])
  await pass()
  assert.equal((await runOf(id)).worker_id, null)
})

async function restart(id: SandboxId): Promise<void> {
  await startSandbox(control.deps, control.caller, { id }, { waitMs: null, signal: never })
}
