import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { createVolume } from '../../../src/control/volumes/create-volume.ts'
import { deleteVolume } from '../../../src/control/volumes/delete-volume.ts'
import { openVolumeFiles } from '../../../src/control/volumes/open-volume-files.ts'
import { listEvents } from '../../../src/control/events/read-events.ts'
import { getSandbox } from '../../../src/control/sandboxes/read-sandboxes.ts'
import { getVolume, listVolumes } from '../../../src/control/volumes/read-volumes.ts'
import { startSandbox } from '../../../src/control/sandboxes/start-sandbox.ts'
import { updateVolume } from '../../../src/control/volumes/update-volume.ts'
import { listVolumeFiles } from '../../../src/control/volumes/volume-files.ts'
import type { Caller } from '../../../src/domain/orgs/caller.ts'
import type { WorkerId } from '../../../src/domain/ids.ts'
import { Problem } from '../../../src/domain/problem.ts'
import { addOrg } from '../../support/orgs.ts'
import { makeVolumeWorld, named, never, type VolumeWorld } from '../../support/volume-world.ts'

let world: VolumeWorld
let worker: WorkerId
let stranger: Caller
before(async () => {
  world = await makeVolumeWorld()
  worker = await world.addWorker('w1')
  await world.sync(worker)
  stranger = await addOrg(world.deps, 'stranger')
})
after(() => world.close())

async function eventsOf(change: () => Promise<unknown>): Promise<readonly string[]> {
  const read = async (): Promise<readonly string[]> => {
    const input = { event_type: null, since: null, until: null, cursor: null, limit: 1_000 }
    return (await listEvents(world.deps, world.caller, input)).items.map(({ event_type }) => event_type).toReversed()
  }
  const before = (await read()).length
  await change()
  return (await read()).slice(before)
}

test('no use case shows or changes a volume of another organization', async () => {
  const { deps } = world
  const { id } = await world.addVolume('private')
  await assert.rejects(getVolume(deps, stranger, { id }), { code: 'volume_not_found' })
  await assert.rejects(updateVolume(deps, stranger, id, { capacity_gib: 1 }), { code: 'volume_not_found' })
  await assert.rejects(deleteVolume(deps, stranger, id), { code: 'volume_not_found' })
  const ask = { ref: { id }, path: '/', signal: never }
  await assert.rejects(listVolumeFiles(deps, stranger, ask), { code: 'volume_not_found' })
  assert.deepEqual(await listVolumes(deps, stranger), [])
  const mine = await createVolume(deps, stranger, { name: 'private', labels: {}, capacity_gib: null })
  assert.notEqual(mine.id, id)
  assert.equal((await getVolume(deps, world.caller, { id })).status, 'active')
})

test('the default volume is first in the list, and the others follow in the order of their creation', async () => {
  await world.addVolume('zz')
  await world.addVolume('aa')
  const listed = await listVolumes(world.deps, world.caller)
  assert.deepEqual([listed[0]?.kind, listed[0]?.name], ['host', null])
  assert.deepEqual(listed.slice(-2).map(({ name }) => name), ['zz', 'aa']) // prettier-ignore
})

test('each change records its events, and repeating it records none', async () => {
  const { deps, caller } = world
  const { id } = await world.addVolume('told')
  const labels = { team: 'ml' }
  assert.deepEqual(await eventsOf(() => world.addVolume('told-too', 2)), ['volume_created'])
  assert.deepEqual(await eventsOf(() => updateVolume(deps, caller, id, { capacity_gib: 3, labels })), [
    'volume_updated',
  ])
  assert.deepEqual(await eventsOf(() => updateVolume(deps, caller, id, { capacity_gib: 3, labels })), [])
  assert.deepEqual(await eventsOf(() => deleteVolume(deps, caller, id)), ['volume_deletion_scheduled'])
  assert.deepEqual(await eventsOf(() => deleteVolume(deps, caller, id)), [])
  assert.deepEqual(await eventsOf(() => world.reap()), ['volume_deleted'])
  await assert.rejects(deleteVolume(deps, caller, id), { code: 'volume_not_found' })
})

test('an absent cap stays as it is, null removes it, and a number sets it', async () => {
  const { deps, caller } = world
  const { id } = await world.addVolume('states', 5)
  const capOf = async (): Promise<number | null> => (await getVolume(deps, caller, { id })).capacity_gib
  await updateVolume(deps, caller, id, { labels: { a: 'b' } })
  assert.equal(await capOf(), 5)
  await updateVolume(deps, caller, id, { capacity_gib: 7 })
  assert.equal(await capOf(), 7)
  await updateVolume(deps, caller, id, { capacity_gib: null })
  assert.equal(await capOf(), null)
})

test('the default volume can be neither deleted nor capped, and its labels can be set', async () => {
  const { deps, caller } = world
  const { id } = await getVolume(deps, caller, 'default')
  await assert.rejects(deleteVolume(deps, caller, id), { code: 'default_volume_protected' })
  await assert.rejects(updateVolume(deps, caller, id, { capacity_gib: 1 }), { code: 'default_volume_protected' })
  assert.deepEqual((await updateVolume(deps, caller, id, { capacity_gib: null, labels: { a: 'b' } })).labels, {
    a: 'b',
  })
})

test("a volume's name is taken until the volume is fully deleted, and the refusal says so", async () => {
  const { deps, caller } = world
  const { id } = await world.addVolume('reborn')
  await assert.rejects(world.addVolume('reborn'), { code: 'volume_already_exists', message: "'name' already exists" })
  await deleteVolume(deps, caller, id)
  await assert.rejects(world.addVolume('reborn'), { code: 'volume_already_exists', message: /still being deleted/ })
  await world.reap()
  assert.notEqual((await world.addVolume('reborn')).id, id)
})

test('a cap that exceeds the organization’s limit, or that no worker can enforce, is refused by its field', async () => {
  const { deps, caller } = world
  await deps.db.asSystem(
    (q) =>
    q.query({ text: `UPDATE orgs SET quota_overrides = '{"max_total_storage_gib": 4}' WHERE id = $1`, values: [caller.org_id] }), // prettier-ignore
  )
  const isAboutCap = (error: unknown): boolean =>
    error instanceof Problem && error.code === 'invalid_request' && error.details?.['field'] === 'capacity_gib'
  await assert.rejects(world.addVolume('too-large', 5), isAboutCap)
  const fits = await world.addVolume('fits', 4)
  await deps.db.asSystem((q) => q.query({ text: `UPDATE orgs SET quota_overrides = '{}'` }))
  await world.sync(worker, { enforces_caps: false })
  await assert.rejects(world.addVolume('unenforceable', 1), isAboutCap)
  await assert.rejects(updateVolume(deps, caller, fits.id, { capacity_gib: 2 }), isAboutCap)
  assert.equal((await updateVolume(deps, caller, fits.id, { capacity_gib: null })).capacity_gib, null)
  await world.sync(worker)
})

test("a volume can't be deleted while an active sandbox mounts it, and the refusal names the sandbox", async () => {
  const { deps, caller } = world
  const { id } = await world.addVolume('in-use')
  const idle = await world.create(['in-use'], false)
  const inUse = (error: unknown): boolean => {
    assert.ok(error instanceof Problem && error.code === 'volume_in_use')
    assert.deepEqual(error.details, { sandboxes: [{ id: idle.id, name: idle.name, status: 'created' }] })
    return true
  }
  await assert.rejects(deleteVolume(deps, caller, id), inUse)
  await startSandbox(deps, caller, { id: idle.id }, { waitMs: null, signal: never })
  await assert.rejects(deleteVolume(deps, caller, id), { code: 'volume_in_use' })
  await world.stop(idle)
  await deleteVolume(deps, caller, id)
  const start = startSandbox(deps, caller, { id: idle.id }, { waitMs: null, signal: never })
  await assert.rejects(start, { code: 'invalid_state_transition', message: /'in-use'/ })
  await world.reap()
  const later = startSandbox(deps, caller, { id: idle.id }, { waitMs: null, signal: never })
  await assert.rejects(later, { code: 'invalid_state_transition', message: /'in-use'/ })
})

test('a mount of an unknown volume is refused by its field, and nothing is created', async () => {
  const gone = await world.addVolume('leaving')
  await deleteVolume(world.deps, world.caller, gone.id)
  for (const name of ['nowhere', 'leaving']) {
    const fields = (error: unknown): boolean =>
      error instanceof Problem &&
      error.code === 'invalid_sandbox_config' &&
      error.details?.['field'] === 'mounts[0].name'
    await assert.rejects(world.create([name]), fields)
  }
})

test("of a volume's deletion and a create or start that mounts it, at most one succeeds", async () => {
  const { deps, caller } = world
  for (let round = 0; round < 25; round++) {
    const name = `raced-${String(round)}`
    const { id } = await world.addVolume(name)
    const idle = round % 2 === 0 ? await world.create([name], false) : null
    if (idle !== null) {
      await startSandbox(deps, caller, { id: idle.id }, { waitMs: null, signal: never })
      await world.stop(idle)
    }
    const begin = (): Promise<unknown> =>
      idle === null
        ? world.create([name])
        : startSandbox(deps, caller, { id: idle.id }, { waitMs: null, signal: never })
    const [removal, ...begun] = await Promise.allSettled([deleteVolume(deps, caller, id), begin(), begin(), begin()])
    const wasBegun = begun.some(({ status }) => status === 'fulfilled')
    assert.notEqual(removal.status === 'fulfilled', wasBegun, `round ${String(round)}: exactly one of them wins`)
    const { status } = await getVolume(deps, caller, { id })
    assert.equal(status, wasBegun ? 'active' : 'deleting')
  }
})

test('the first file of a volume does not bring the volume to a worker that can not mount it', async () => {
  const { deps, caller } = world
  const pods = await world.addWorker('pods')
  await world.sync(pods, { abilities: [], memory_mib: 1_000_000 })
  const volume = await world.addVolume('to-mount')
  await openVolumeFiles(deps, caller, { ref: { id: volume.id }, signal: never })
  assert.equal((await world.homeOf(volume.id))?.home_worker_id, worker)
})

test('the first file of a volume goes to a worker that serves files, if one also mounts volumes', async () => {
  const { deps, caller } = world
  const claims = await world.addWorker('claims')
  await world.sync(claims, { serves_files: false, memory_mib: 1_000_000 })
  const volume = await world.addVolume('to-fill')
  await openVolumeFiles(deps, caller, { ref: { id: volume.id }, signal: never })
  assert.equal((await world.homeOf(volume.id))?.home_worker_id, worker)
})

test('a volume gets its home worker once, at its first use', async () => {
  const { deps, caller } = world
  const other = await world.addWorker('w2')
  await world.sync(other)
  const volume = await world.addVolume('homeless')
  assert.deepEqual(await world.homeOf(volume.id), { home_worker_id: null, is_shared: false })
  const ask = { ref: { id: volume.id }, signal: never }
  await world.create(['homeless'])
  await Promise.all([world.place(), ...Array.from({ length: 5 }, () => openVolumeFiles(deps, caller, ask))])
  const home = await world.homeOf(volume.id)
  assert.ok(home?.home_worker_id === worker || home?.home_worker_id === other)
  await world.place()
  const next = await world.create(['homeless'])
  await world.place()
  assert.deepEqual(await world.homeOf(volume.id), home)
  const { rows } = await deps.db.asSystem(
    (q) =>
    q.query<{ readonly worker_id: string }>({ text: 'SELECT worker_id FROM runs WHERE sandbox_id = $1', values: [next.id] }), // prettier-ignore
  )
  assert.equal(rows[0]?.worker_id, home.home_worker_id)
})

test('volumes with different homes are refused together, or fail the run if the homes came later', async () => {
  const { deps, caller } = world
  const other = await world.addWorker('w3')
  await world.sync(other)
  const place = async (name: string, home: WorkerId): Promise<void> => {
    await deps.db.asSystem((q) =>
      q.query({ text: 'UPDATE volumes SET home_worker_id = $2 WHERE name = $1', values: [name, home] }),
    )
  }
  for (const name of ['here', 'there', 'later']) await world.addVolume(name)
  await place('here', worker)
  await place('there', other)
  const named = (error: unknown): boolean =>
    error instanceof Problem && error.details?.['field'] === 'mounts[0].name, mounts[1].name'
  await assert.rejects(world.create(['here', 'there']), named)
  const torn = await world.create(['here', 'later'])
  await place('later', other)
  await world.place()
  const { status, last_failure_message } = await getSandbox(deps, caller, { id: torn.id })
  assert.deepEqual([status, last_failure_message], ['failed', 'its volumes are on different workers, and a sandbox runs on one']) // prettier-ignore
})

test('the answer to a worker’s sync has the volumes that its runs mount, by name and with their caps', async () => {
  const { id } = await world.addVolume('ordered', 2)
  const sandbox = await world.create(['ordered'])
  await world.place()
  const home = (await world.homeOf(id))?.home_worker_id
  assert.ok(home)
  const answer = await world.sync(home)
  const run = answer.desired_runs?.find(({ sandbox_id }) => sandbox_id === sandbox.id)
  const caps = { capacity_bytes: 2 * 2 ** 30, org_capacity_bytes: null }
  const expected = { org_id: world.caller.org_id, volume_id: id, ...caps }
  assert.deepEqual(run?.volumes, [{ ...expected, kind: 'managed', name: 'ordered' }])
  assert.ok(answer.volumes?.some(({ volume_id, capacity_bytes }) => volume_id === id && capacity_bytes === caps.capacity_bytes)) // prettier-ignore
  assert.deepEqual(JSON.parse(run.spec_json).mounts, [named('ordered')])
})
