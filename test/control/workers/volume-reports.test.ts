import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import fc from 'fast-check'
import { deleteVolume } from '../../../src/control/volumes/delete-volume.ts'
import { getVolume } from '../../../src/control/volumes/read-volumes.ts'
import { updateVolume } from '../../../src/control/volumes/update-volume.ts'
import { asId, type VolumeId, type WorkerId } from '../../../src/domain/ids.ts'
import { makeTestClock } from '../../support/test-clock.ts'
import { makeVolumeWorld, type VolumeWorld } from '../../support/volume-world.ts'

const clock = makeTestClock()
let world: VolumeWorld
let worker: WorkerId
before(async () => {
  world = await makeVolumeWorld({ clock })
  worker = await world.addWorker('w1')
  await world.sync(worker)
})
after(() => world.close())

let made = 0

/** Creates a volume whose home is the worker. */
async function placed(): Promise<VolumeId> {
  made += 1
  const { id } = await world.addVolume(`v-${String(made)}`)
  await world.deps.db.asSystem((q) =>
    q.query({ text: 'UPDATE volumes SET home_worker_id = $2 WHERE id = $1', values: [id, worker] }),
  )
  return id
}

async function report(...takes: readonly (readonly [VolumeId, number])[]) {
  const { org_id } = world.caller
  return world.sync(worker, { volumes: takes.map(([volume_id, used_bytes]) => ({ org_id, volume_id, used_bytes })) })
}

type Accrual = { readonly from: string; readonly to: string; readonly used_bytes: number }

async function accrualsOf(id: VolumeId): Promise<readonly Accrual[]> {
  const { rows } = await world.deps.db.asSystem((q) =>
    q.query<{ readonly from_at: Date; readonly to_at: Date; readonly used_bytes: number }>({
      text: 'SELECT from_at, to_at, used_bytes FROM storage_accruals WHERE volume_id = $1 ORDER BY from_at',
      values: [id],
    }),
  )
  return rows.map(({ from_at, to_at, used_bytes }) => {
    return { from: from_at.toISOString(), to: to_at.toISOString(), used_bytes }
  })
}

const HOUR_MS = 3_600_000

test('the used bytes of a volume are recorded as intervals within days, and an equal value extends the last interval', async () => {
  const id = await placed()
  const start = clock.now()
  const toMidnightMs = 24 * HOUR_MS - (start.getTime() % (24 * HOUR_MS))
  clock.advance(toMidnightMs - HOUR_MS) // 23:00
  const at = (ms: number): string => new Date(start.getTime() + toMidnightMs - HOUR_MS + ms).toISOString()
  await report([id, 100])
  assert.deepEqual(await accrualsOf(id), [])
  clock.advance(HOUR_MS / 2)
  await report([id, 100])
  clock.advance(HOUR_MS / 4)
  await report([id, 100])
  assert.deepEqual(await accrualsOf(id), [{ from: at(0), to: at((HOUR_MS * 3) / 4), used_bytes: 100 }])
  clock.advance(HOUR_MS * 25)
  await report([id, 7])
  assert.deepEqual(await accrualsOf(id), [
    { from: at(0), to: at(HOUR_MS), used_bytes: 100 },
    { from: at(HOUR_MS), to: at(25 * HOUR_MS), used_bytes: 100 },
    { from: at(25 * HOUR_MS), to: at(25.75 * HOUR_MS), used_bytes: 100 },
  ])
  clock.advance(HOUR_MS)
  await report([id, 0])
  clock.advance(HOUR_MS)
  await report([id, 0])
  assert.deepEqual((await accrualsOf(id)).slice(3), [
    { from: at(25.75 * HOUR_MS), to: at(26.75 * HOUR_MS), used_bytes: 7 },
  ])
})

test('whatever a volume holds and however the clock steps, intervals stay in order, within a day, and count no time twice', async () => {
  const steps = fc.array(
    fc.record({ stepMs: fc.integer({ min: -3 * HOUR_MS, max: 40 * HOUR_MS }), used: fc.integer({ min: 0, max: 3 }) }),
    { minLength: 1, maxLength: 8 },
  )
  await fc.assert(
    fc.asyncProperty(steps, async (all) => {
      const id = await placed()
      await report([id, 1])
      const firstMs = clock.now().getTime()
      let untilMs = firstMs
      let used = 1
      let expected = 0
      for (const step of all) {
        clock.advance(step.stepMs)
        const nowMs = clock.now().getTime()
        if (nowMs > untilMs) {
          expected += (nowMs - untilMs) * used
          untilMs = nowMs
        }
        used = step.used
        await report([id, used])
      }
      const rows = await accrualsOf(id)
      let sum = 0
      let lastMs = firstMs
      for (const { from, to, used_bytes } of rows) {
        const [fromMs, toMs] = [Date.parse(from), Date.parse(to)]
        assert.ok(fromMs >= lastMs && toMs > fromMs && used_bytes > 0)
        assert.equal(Math.floor(fromMs / (24 * HOUR_MS)), Math.floor((toMs - 1) / (24 * HOUR_MS)))
        sum += (toMs - fromMs) * used_bytes
        lastMs = toMs
      }
      assert.equal(sum, expected)
    }),
    { numRuns: 25 },
  )
})

test('a volume is counted until its deletion is requested, and its intervals outlive it', async () => {
  const { deps, caller } = world
  const id = await placed()
  await report([id, 5])
  clock.advance(1_000)
  await deleteVolume(deps, caller, id)
  const atDeletion = await accrualsOf(id)
  assert.equal(atDeletion.length > 0, true)
  clock.advance(HOUR_MS)
  const asked = await report([id, 5])
  assert.ok(asked.discard_volumes.some(({ volume_id }) => volume_id === id))
  await world.reap()
  assert.equal((await getVolume(deps, caller, { id })).status, 'deleting', 'its files are there still')
  await report()
  await world.reap()
  await assert.rejects(getVolume(deps, caller, { id }), { code: 'volume_not_found' })
  assert.deepEqual(await accrualsOf(id), atDeletion)
})

test('a deleted volume that its worker never reported is gone after the worker’s next report, even if that lists no volumes', async () => {
  const { deps, caller } = world
  const id = await placed()
  await deleteVolume(deps, caller, id)
  await world.reap()
  assert.equal((await getVolume(deps, caller, { id })).status, 'deleting')
  await world.sync(worker, { volumes: null })
  await world.reap()
  await assert.rejects(getVolume(deps, caller, { id }), { code: 'volume_not_found' })
})

test('a worker that reports a deleted volume must delete it, but not a volume with another home or one that never existed', async () => {
  const { deps, caller } = world
  const back = await placed()
  await deleteVolume(deps, caller, back)
  await report()
  await world.reap()
  const other = await world.addWorker('w2')
  await world.sync(other)
  const id = await placed()
  const ofAnotherDatabase = asId<VolumeId>(deps.uuids.next())
  const { org_id } = caller
  const volumes = [id, back, ofAnotherDatabase].map((volume_id) => ({ org_id, volume_id, used_bytes: 9 }))
  const answer = await world.sync(other, { volumes })
  assert.deepEqual(answer.discard_volumes, [{ org_id, volume_id: back }])
  assert.equal((await getVolume(deps, caller, { id })).used_bytes, null, 'the report of another worker is ignored')
})

test('changed caps are sent to a worker once, and not again once it reports their version', async () => {
  const { deps, caller } = world
  const id = await placed()
  const first = await report([id, 1])
  assert.ok(first.volumes?.some(({ volume_id, capacity_bytes }) => volume_id === id && capacity_bytes === null))
  assert.equal((await world.sync(worker, { known: first.volumes_version })).volumes, null)
  let woken = 0
  const stop = deps.notifications.subscribe(`worker:${worker}`, () => (woken += 1))
  await updateVolume(deps, caller, id, { capacity_gib: 3 })
  const next = await world.sync(worker, { known: first.volumes_version })
  assert.ok(next.volumes?.some((one) => one.volume_id === id && one.capacity_bytes === 3 * 2 ** 30))
  stop()
  assert.ok(woken > 0, 'its worker is woken')
})

test('a volume in a shared storage has its home on each worker of that storage', async () => {
  const [a, b] = [await world.addWorker('s1'), await world.addWorker('s2')]
  for (const one of [a, b]) await world.sync(one, { is_shared: true })
  const { id, org_id } = await world.addVolume('everywhere')
  await world.deps.db.asSystem((q) =>
    q.query({ text: 'UPDATE volumes SET is_shared = true WHERE id = $1', values: [id] }),
  )
  const volumes = [{ org_id, volume_id: id, used_bytes: 4 }]
  for (const one of [a, b]) {
    const answer = await world.sync(one, { is_shared: true, volumes })
    assert.ok(answer.volumes?.some(({ volume_id }) => volume_id === id))
  }
  assert.equal((await getVolume(world.deps, world.caller, { id })).used_bytes, 4)
  await world.sync(worker, { volumes: [{ org_id, volume_id: id, used_bytes: 99 }] })
  assert.equal(
    (await getVolume(world.deps, world.caller, { id })).used_bytes,
    4,
    'a worker without shared storage is ignored',
  )
})
