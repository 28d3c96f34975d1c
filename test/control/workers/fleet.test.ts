import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { deleteVolume } from '../../../src/control/volumes/delete-volume.ts'
import { drainWorker, listWorkers, removeWorker, resumeWorker } from '../../../src/control/workers/fleet.ts'
import {
  authenticateWorker,
  joinWorker,
  registerWorker,
  type JoinedWorker,
} from '../../../src/control/workers/worker-join.ts'
import { createJoinToken } from '../../../src/control/workers/join-tokens.ts'
import { openVolumeFiles } from '../../../src/control/volumes/open-volume-files.ts'
import { startSandbox } from '../../../src/control/sandboxes/start-sandbox.ts'
import { moveSandbox } from '../../../src/control/sandboxes/transitions/transition.ts'
import { SYSTEM_ACTOR } from '../../../src/domain/orgs/caller.ts'
import { hashSecret } from '../../../src/domain/orgs/api-key.ts'
import { asId, type SandboxId, type VolumeId, type WorkerId } from '../../../src/domain/ids.ts'
import { WORKER_LEASE_MS } from '../../../src/domain/workers/lease.ts'
import { makeDetectLostWorkersLoop } from '../../../src/loops/detect-lost-workers.ts'
import { makePruneJoinTokensLoop } from '../../../src/loops/prune.ts'
import { makeFinishDeparturesLoop } from '../../../src/loops/finish-departures.ts'
import { makeTestClock, type TestClock } from '../../support/test-clock.ts'
import { makeVolumeWorld, never, type VolumeWorld } from '../../support/volume-world.ts'

// Tests of how machines join as workers, and of what happens to runs, disks and volumes when a worker is drained or
// removed.

let clock: TestClock
let world: VolumeWorld
before(async () => {
  clock = makeTestClock()
  world = await makeVolumeWorld({ clock })
  await removeWorker(world.deps, 'w1', 'unused').catch(() => null) // some worlds already have a worker `w1`
})
after(() => world.close())

const lifeMs = 3_600_000
const NO_BOUNDS = {
  max_vcpus: null,
  max_memory_mib: null,
  max_disk_mib: null,
  shared_volumes: true,
  org_ids: null,
}
async function tokenFor(name: string | null = null): Promise<string> {
  return (await createJoinToken(world.deps, { name, lifeMs, bounds: NO_BOUNDS })).token
}
function joinWith(
  token: string,
  more: { readonly credential?: string; readonly name?: string | null } = {},
): Promise<JoinedWorker> {
  const { credential = `the credential for ${token}`, name = null } = more
  return joinWorker(world.deps, { token, credentialSha256: hashSecret(credential), name, fallbackName: 'host' })
}
const refusal = (code: string, message: RegExp) => (error: unknown) => {
  assert.ok(error instanceof Error && 'code' in error)
  assert.equal(error.code, code)
  assert.match(error.message, message)
  return true
}

test('a join token is for one machine, which gets the same answer again if the first was lost; another machine is refused', async () => {
  const token = await tokenFor()
  const credential = 'the first machine’s'
  const joined = await joinWith(token, { credential, name: 'first' })
  assert.equal(joined.name, 'first')
  assert.deepEqual(await joinWith(token, { credential, name: 'first' }), joined)
  await assert.rejects(joinWith(token, { credential: 'another’s' }), refusal('invalid_join_token', /has been used/))
  assert.equal((await authenticateWorker(world.deps, credential))?.id, joined.worker_id)
  assert.equal(await authenticateWorker(world.deps, token), null)
})

test('of many machines that use one token at the same time, one becomes a worker', async () => {
  const token = await tokenFor()
  const tries = Array.from({ length: 8 }, (_, at) =>
    joinWith(token, { credential: `racer ${String(at)}`, name: `racer-${String(at)}` }),
  )
  const won = (await Promise.allSettled(tries)).filter(({ status }) => status === 'fulfilled')
  assert.equal(won.length, 1)
})

test('one machine that joins with many tokens at the same time is one worker', async () => {
  for (const round of ['a', 'b', 'c']) {
    const tokens = await Promise.all(Array.from({ length: 8 }, () => tokenFor()))
    const joined = await Promise.all(
      tokens.map((token, at) =>
        joinWith(token, { credential: `hasty ${round}`, name: `hasty-${round}-${String(at)}` }),
      ),
    )
    assert.equal(new Set(joined.map(({ worker_id }) => worker_id)).size, 1)
    assert.equal(new Set(joined.map(({ name }) => name)).size, 1)
  }
})

test('a join token is deleted a day after it was used or expired, and not before', async () => {
  const [used, unused] = [await tokenFor(), await tokenFor()]
  const credential = 'of one whose answer was lost'
  const joined = await joinWith(used, { credential, name: 'answered-late' })
  const { run } = makePruneJoinTokensLoop(world.deps)
  const known = async (token: string): Promise<boolean> =>
    (await rows('SELECT id FROM worker_tokens WHERE secret_sha256 = $1', hashSecret(token))).length > 0
  clock.advance(24 * 3_600_000 - 1)
  await run(never)
  assert.deepEqual(await joinWith(used, { credential }), joined)
  assert.deepEqual([await known(used), await known(unused)], [true, true])
  clock.advance(2)
  await run(never)
  assert.deepEqual([await known(used), await known(unused)], [false, true])
  await assert.rejects(joinWith(unused), refusal('invalid_join_token', /expired at/))
  clock.advance(lifeMs)
  await run(never)
  assert.equal(await known(unused), false)
  await assert.rejects(joinWith(unused), refusal('invalid_join_token', /does not know the token/))
  assert.equal((await authenticateWorker(world.deps, credential))?.id, joined.worker_id)
})

test('an expired, unknown or incomplete token is refused, and no table stores the text of one', async () => {
  const token = await tokenFor()
  const dump = await world.deps.db.asSystem((q) => q.query({ text: 'SELECT t::text AS row FROM worker_tokens t' }))
  assert.ok(!JSON.stringify(dump.rows).includes(token.slice(4)))
  await assert.rejects(joinWith(token.slice(0, -1)), refusal('invalid_join_token', /join token is incomplete/))
  clock.advance(lifeMs)
  await assert.rejects(joinWith(token), refusal('invalid_join_token', /expired at/))
})

test('a worker gets the name of its join token, and the name of a live worker or of the local one is refused', async () => {
  assert.equal((await joinWith(await tokenFor('chosen'))).name, 'chosen')
  await assert.rejects(
    joinWith(await tokenFor(), { name: 'chosen' }),
    refusal('name_already_exists', /'chosen' exists/),
  )
  await assert.rejects(
    joinWith(await tokenFor('one'), { name: 'two' }),
    refusal('invalid_request', /'one', which the token is for/),
  )
  await assert.rejects(joinWith(await tokenFor(), { name: 'local' }), refusal('invalid_request', /accepted/))
  await assert.rejects(
    createJoinToken(world.deps, { name: 'a name', lifeMs, bounds: NO_BOUNDS }),
    refusal('invalid_request', /accepted/),
  )
})

test('a removed worker is told that it was removed, an unknown credential is just refused, and the removed worker’s name is free', async () => {
  const credential = 'of one that goes'
  const first = await joinWith(await tokenFor(), { credential, name: 'goes' })
  await removeWorker(world.deps, 'goes', 'unused')
  await assert.rejects(authenticateWorker(world.deps, credential), refusal('worker_removed', /'goes' was removed at/))
  assert.equal(await authenticateWorker(world.deps, 'of nobody'), null)
  const second = await joinWith(await tokenFor(), { credential: 'of the next', name: 'goes' })
  assert.notEqual(second.worker_id, first.worker_id)
  await assert.rejects(removeWorker(world.deps, 'never', 'unused'), refusal('not_found', /no worker 'never'/))
})

test('a report that arrives just after its worker was removed prolongs no lease', async () => {
  const { worker_id } = await joinWith(await tokenFor(), { name: 'late' })
  await world.sync(worker_id)
  await removeWorker(world.deps, 'late', 'unused')
  const lease = async (): Promise<unknown> =>
    (await rows('SELECT lease_expires_at FROM workers WHERE id = $1', worker_id))[0]
  const before = await lease()
  clock.advance(1_000)
  await world.sync(worker_id)
  assert.deepEqual(await lease(), before)
})

test('runs of a draining worker continue until the deadline and are then asked to stop, with that cause; resuming ends the drain', async () => {
  const { worker_id, id } = await runOn('drains')
  const pass = makeFinishDeparturesLoop(world.deps)
  await drainWorker(world.deps, 'drains', null)
  assert.equal(await stateOf('drains'), 'draining')
  clock.advance(WORKER_LEASE_MS / 2)
  await pass.run(never)
  assert.equal(await statusOf(id), 'running')
  await resumeWorker(world.deps, 'drains')
  assert.equal(await stateOf('drains'), 'live')
  await drainWorker(world.deps, 'drains', 1_000)
  await pass.run(never)
  assert.equal(await statusOf(id), 'running')
  clock.advance(1_000)
  await pass.run(never)
  assert.equal(await statusOf(id), 'stopping')
  assert.deepEqual(await rows('SELECT stop_cause FROM runs WHERE sandbox_id = $1', id), [{ stop_cause: 'drained' }])
  await move(id, 'worker_stopped')
  assert.notEqual((await world.sync(worker_id)).drain?.deadline_at, undefined, 'and the worker is told')
  await removeWorker(world.deps, 'drains', 'force')
})

test('a volume never gets its home on a draining worker', async () => {
  const { deps, caller } = world
  const [drains, stays] = [
    await joinWith(await tokenFor(), { name: 'd-1' }),
    await joinWith(await tokenFor(), { name: 'd-2' }),
  ]
  for (const { worker_id } of [drains, stays]) await world.sync(worker_id)
  await drainWorker(deps, 'd-1', null)
  for (const name of ['v-1', 'v-2', 'v-3']) {
    const { id } = await world.addVolume(name)
    await openVolumeFiles(deps, caller, { ref: { id }, signal: never })
    assert.equal((await world.homeOf(id))?.home_worker_id, stays.worker_id)
  }
  for (const name of ['d-1', 'd-2']) await removeWorker(deps, name, 'force')
})

test('a removal is refused with what would be lost; after a forced one, sandboxes start elsewhere only once the lease is over', async () => {
  const { deps, caller } = world
  const { worker_id, id } = await runOn('falls', ['kept', 'leaving'])
  await assert.rejects(
    removeWorker(deps, 'falls', 'unused'),
    refusal('worker_in_use', /1 runs, the disks of 1 sandboxes \(.+\), 2 volumes \(kept, leaving\)/),
  )
  const removal = await removeWorker(deps, 'falls', 'force')
  assert.deepEqual([removal.runs, removal.sandboxes, removal.volumes], [1, 1, 2])
  assert.equal(await stateOf('falls'), 'removed')

  const [lost, retire] = [makeDetectLostWorkersLoop(deps), makeFinishDeparturesLoop(deps)]
  const passes = async (ms: number): Promise<void> => {
    for (let passed = 0; passed < ms; passed += 2_000) {
      clock.advance(2_000)
      await lost.run(never)
      await retire.run(never)
    }
  }
  await passes(WORKER_LEASE_MS - 2_000)
  assert.equal(await statusOf(id), 'running', 'it may run there still')
  assert.deepEqual(await homesOf(id), [worker_id, worker_id, worker_id])
  await passes(6_000)
  assert.equal(await statusOf(id), 'failed')
  const [failed] = await rows('SELECT last_failure_message FROM sandboxes WHERE id = $1', id)
  assert.deepEqual(failed, { last_failure_message: `worker lost: 'falls' was removed` })
  assert.deepEqual(await homesOf(id), [null, null, null])

  const other = await joinWith(await tokenFor(), { name: 'takes-over' })
  await world.sync(other.worker_id)
  await startSandbox(deps, caller, { id }, { waitMs: null, signal: never })
  await world.place()
  assert.deepEqual(await homesOf(id), [other.worker_id, other.worker_id, other.worker_id])
  await move(id, 'worker_running')
  await move(id, 'stop_requested')
  await move(id, 'worker_stopped')
  await removeWorker(deps, 'takes-over', 'force')
})

test('runs that outlive their worker are not lost while it is silent, and are once it was removed', async () => {
  const { deps } = world
  const { worker_id, id } = await runOn('beyond')
  await world.asOwner(`UPDATE workers SET driver = driver || '{"runs_outlive_worker": true}' WHERE id = $1`, [
    worker_id,
  ])
  const lost = makeDetectLostWorkersLoop(deps)
  const passes = async (ms: number): Promise<void> => {
    for (let passed = 0; passed < ms; passed += 2_000) {
      clock.advance(2_000)
      await lost.run(never)
    }
  }
  await passes(3 * WORKER_LEASE_MS)
  assert.equal(await statusOf(id), 'running')
  await removeWorker(deps, 'beyond', 'force')
  await passes(2 * WORKER_LEASE_MS)
  assert.equal(await statusOf(id), 'failed')
})

test('when a worker is removed, volumes that it was deleting are gone and their names are free', async () => {
  const { deps, caller } = world
  const { worker_id, id } = await runOn('holds', ['doomed'])
  const [volume] = await rows<{ id: string; org_id: string }>(`SELECT id, org_id FROM volumes WHERE name = 'doomed'`)
  assert.ok(volume)
  await move(id, 'stop_requested')
  await move(id, 'worker_stopped')
  await deps.db.asSystem((q) =>
    q.query({ text: `UPDATE sandboxes SET visible_until = now() WHERE id = $1`, values: [id] }),
  )
  await world.asOwner('DELETE FROM sandbox_volumes WHERE sandbox_id = $1', [id])
  await deleteVolume(deps, caller, asId<VolumeId>(volume.id))
  await world.reap()
  assert.equal((await rows(`SELECT 1 FROM volumes WHERE name = 'doomed'`)).length, 1)
  await removeWorker(deps, 'holds', 'unused')
  clock.advance(WORKER_LEASE_MS + 1)
  await makeFinishDeparturesLoop(deps).run(never)
  await world.reap()
  assert.equal((await rows(`SELECT 1 FROM volumes WHERE name = 'doomed'`)).length, 0)
  assert.equal((await rows('SELECT 1 FROM volumes WHERE home_worker_id = $1', worker_id)).length, 0)
})

test('the local worker can be removed only once no process runs as it', async () => {
  const id = await registerWorker(world.deps, { name: 'local', credential: 'of the local one' })
  await world.sync(id)
  await assert.rejects(
    removeWorker(world.deps, 'local', 'force'),
    refusal('worker_in_use', /worker of a running `sandyard up`/),
  )
  clock.advance(WORKER_LEASE_MS)
  assert.equal(await stateOf('local'), 'silent')
  await removeWorker(world.deps, 'local', 'unused')
  const again = await registerWorker(world.deps, { name: 'local', credential: 'of the local one' })
  assert.notEqual(again, id)
  assert.deepEqual(await authenticateWorker(world.deps, 'of the local one'), { id: again, bounds: null })
})

/** A worker with one running sandbox that mounts volumes of these names. */
async function runOn(
  name: string,
  volumes: readonly string[] = [],
): Promise<{ readonly worker_id: WorkerId; readonly id: SandboxId }> {
  const { worker_id } = await joinWith(await tokenFor(), { name })
  await world.sync(worker_id)
  for (const volume of volumes) await world.addVolume(volume)
  const { id } = await world.create(volumes)
  await world.place()
  await move(id, 'worker_running')
  assert.equal(await statusOf(id), 'running')
  return { worker_id, id }
}

async function move(id: SandboxId, event: 'worker_running' | 'stop_requested' | 'worker_stopped'): Promise<void> {
  const cause = { actor: SYSTEM_ACTOR, code: 'worker_report' } as const
  await moveSandbox(world.deps, { sandbox_id: id, run_id: null, event, cause })
}

async function rows<Row extends Record<string, unknown>>(
  text: string,
  ...values: readonly unknown[]
): Promise<readonly Row[]> {
  return (await world.deps.db.asSystem((q) => q.query<Row>({ text, values }))).rows
}
async function statusOf(id: SandboxId): Promise<unknown> {
  return (await rows('SELECT status FROM sandboxes WHERE id = $1', id))[0]?.['status']
}
async function stateOf(name: string): Promise<string | undefined> {
  const all = await Array.fromAsync(listWorkers(world.deps))
  return all.findLast((worker) => worker.name === name)?.state
}
async function homesOf(id: SandboxId): Promise<readonly unknown[]> {
  const found = await rows(
    `SELECT home_worker_id AS home FROM sandboxes WHERE id = $1
     UNION ALL SELECT v.home_worker_id FROM sandbox_volumes m JOIN volumes v ON v.id = m.volume_id WHERE m.sandbox_id = $1`,
    id,
  )
  return found.map(({ home }) => home)
}

test('a Pod joins by the token of its service account, as often as it asks, under its own name or its node’s', async () => {
  const token = 'eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOlsic2FuZHlhcmQiXX0.c2lnbmF0dXJl'
  const deps = {
    ...world.deps,
    reviewToken: (seen: string) => Promise.resolve(seen === token ? { names: ['node-1', 'worker-x2f9z'] } : null),
  }
  const join = (name: string | null, credential: string, shown = token) =>
    joinWorker(deps, { token: shown, credentialSha256: hashSecret(credential), name, fallbackName: 'worker-x2f9z' })
  const first = await join('node-1', 'one')
  assert.deepEqual(await join('node-1', 'one'), first)
  assert.equal((await join(null, 'two')).name, 'worker-x2f9z')
  await assert.rejects(join('node-1', 'three'), refusal('name_already_exists', /remove that one first/))
  await assert.rejects(
    join('node-2', 'four'),
    refusal('invalid_request', /node-2.*accepted: 'node-1' or 'worker-x2f9z'/),
  )
  await assert.rejects(
    join('node-1', 'five', `${token}x`),
    refusal('invalid_join_token', /SANDYARD_JOIN_SERVICE_ACCOUNT/),
  )
  await assert.rejects(joinWith(token), refusal('invalid_join_token', /a token begins with syw_/))
})
