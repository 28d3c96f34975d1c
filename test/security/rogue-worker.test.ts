import assert from 'node:assert/strict'
import { after, before } from 'node:test'
import { WebSocket } from 'ws'
import type { SyncAnswer, SyncRequest } from '../../src/contract/workers/worker-protocol.ts'
import { listWorkers, removeWorker } from '../../src/control/workers/fleet.ts'
import { createJoinToken } from '../../src/control/workers/join-tokens.ts'
import { joinWorker } from '../../src/control/workers/worker-join.ts'
import { createVolume } from '../../src/control/volumes/create-volume.ts'
import { deleteVolume } from '../../src/control/volumes/delete-volume.ts'
import { openVolumeFiles } from '../../src/control/volumes/open-volume-files.ts'
import { asId, type OrgId, type SandboxId, type WorkerId } from '../../src/domain/ids.ts'
import { ISOLATION_LABEL, ISOLATION_LEVELS, isolationAbility } from '../../src/domain/isolation.ts'
import { hashSecret } from '../../src/domain/orgs/api-key.ts'
import type { WorkerBounds } from '../../src/domain/workers/worker-bounds.ts'
import { reportOf } from '../support/report.ts'
import { attack } from '../support/security-attack.ts'
import { waitUntil } from '../support/wait.ts'
import { makeWorkerWorld, type WorkerWorld } from '../support/worker-world.ts'

// A machine that joined with a bound token and speaks the protocol of workers itself.

let world: WorkerWorld
before(async () => {
  world = await makeWorkerWorld()
})
after(() => world.close())

const BOUNDS: WorkerBounds = {
  max_vcpus: 2,
  max_memory_mib: 4_096,
  max_disk_mib: 10_000,
  shared_volumes: false,
  org_ids: null,
}
const HUGE = { vcpus: 1_000_000, memory_mib: 1_000_000_000, disk_mib: 1_000_000_000 }
const NOTHING = { vcpus: 0, memory_mib: 0, disk_mib: 0 }
const SHARED = { is_shared: true, enforces_caps: true, how: 'a lie' }
const CAPPED = { is_shared: false, enforces_caps: true, how: 'says the worker' }
const FACTS = { target: 'workers', attacker: 'a machine that joined as a worker', finding: 11 } as const

type Attacker = { readonly id: WorkerId; readonly name: string; readonly credential: string }

async function joinWith(name: string, bounds: Partial<WorkerBounds> = {}): Promise<Attacker> {
  const { deps } = world.control
  const credential = `the-credential-of-the-worker-${name}`
  const { token } = await createJoinToken(deps, { name, lifeMs: 60_000, bounds: { ...BOUNDS, ...bounds } })
  const joining = { token, credentialSha256: hashSecret(credential), name: null, fallbackName: name }
  return { id: (await joinWorker(deps, joining)).worker_id, name, credential }
}

const honest = (): Attacker => ({ id: world.worker_id, name: 'w1', credential: world.credential })

let seq = 0
function post({ id, credential }: Attacker, claims: Partial<SyncRequest>, signal?: AbortSignal): Promise<Response> {
  return fetch(`${world.url}/worker/v1/sync`, {
    method: 'POST',
    headers: { authorization: `Bearer ${credential}`, 'content-type': 'application/json' },
    body: JSON.stringify(reportOf(id, { seq: ++seq, ...claims })),
    signal: signal ?? null,
  })
}

/** Sends a report, and a second one, which ends the wait of the first. Resolves with the answer to the first. */
async function sync(worker: Attacker, claims: Partial<SyncRequest>): Promise<SyncAnswer> {
  const first = await post(worker, claims)
  assert.equal(first.status, 200)
  const hangUp = new AbortController()
  const second = await post(worker, claims, hangUp.signal)
  const answer: SyncAnswer = JSON.parse(await first.text())
  hangUp.abort()
  await second.text().catch(() => null)
  return answer
}

async function rows<Row extends Record<string, unknown>>(
  text: string,
  values: readonly unknown[] = [],
): Promise<readonly Row[]> {
  return (await world.control.deps.db.asSystem((q) => q.query<Row>({ text, values }))).rows
}

async function workersOf(ids: readonly SandboxId[]): Promise<readonly (WorkerId | null)[]> {
  const found = await rows<{ worker_id: WorkerId | null; waits: boolean }>(
    'SELECT worker_id, waits_since IS NOT NULL AS waits FROM runs WHERE sandbox_id = ANY($1::uuid[]) AND ended_at IS NULL',
    [ids],
  )
  return found.filter(({ worker_id, waits }) => worker_id !== null || waits).map(({ worker_id }) => worker_id)
}

/** Creates sandboxes of the first organization, and resolves with their workers once each is placed or waits. */
async function place(count: number): Promise<readonly (WorkerId | null)[]> {
  const resources = { vcpus: 1, memory_mib: 256, disk_size_mib: null }
  const made = await Promise.all(Array.from({ length: count }, () => world.create({ resources })))
  const ids = made.map(({ id }) => id)
  await waitUntil(async () => (await workersOf(ids)).length === count)
  return workersOf(ids)
}

async function refusedClaimsOf({ id }: Attacker): Promise<string | null> {
  for (const worker of await Array.fromAsync(listWorkers(world.control.deps)))
    if (worker.id === id) return worker.refused_claims
  return null
}

/** Ends all runs and removes an attack's workers, so that they get nothing of a later one. */
async function retire(...workers: readonly Attacker[]): Promise<void> {
  await rows('UPDATE runs SET ended_at = now() WHERE ended_at IS NULL')
  for (const { name } of workers) await removeWorker(world.control.deps, name, 'force')
}

attack('attracts sandboxes by claiming a capacity beyond its join token', FACTS, async () => {
  const rogue = await joinWith('huge')
  await sync(rogue, { capacity: HUGE })
  const placed = await place(6)
  assert.equal(placed.filter((worker) => worker === rogue.id).length, 2)
  const told = await refusedClaimsOf(rogue)
  assert.match(told ?? '', /1000000 vCPUs, of which 2 are allowed; .*memory.*; .*disk/)
  const [row] = await rows('SELECT vcpus, memory_mib, disk_mib FROM workers WHERE id = $1', [rogue.id])
  assert.deepEqual(row, { vcpus: 2, memory_mib: 4_096, disk_mib: 10_000 })
  await sync(rogue, { capacity: HUGE, volumes: [] }) // the other statement that records reports
  assert.deepEqual(await rows('SELECT vcpus, memory_mib, disk_mib FROM workers WHERE id = $1', [rogue.id]), [row])
  await sync(rogue, { capacity: { ...NOTHING, disk_mib: null } })
  assert.match((await refusedClaimsOf(rogue)) ?? '', /disk without a limit, of which 10000 MiB are allowed/)
  assert.deepEqual(await rows('SELECT disk_mib FROM workers WHERE id = $1', [rogue.id]), [
    { disk_mib: row?.['disk_mib'] },
  ])
  await sync(rogue, { capacity: NOTHING })
  assert.equal(await refusedClaimsOf(rogue), null)
  await retire(rogue)
  return {
    tries: 6,
    outcome: 'of 6 sandboxes, it got the 2 for which its token has vCPUs; `worker list` shows the claim',
  }
})

attack('reads, resizes and ends the shared volumes of all organizations', FACTS, async () => {
  const { deps, caller } = world.control
  const rogue = await joinWith('sharer')
  const [kept, deleted] = [
    await createVolume(deps, caller, { name: 'kept', labels: {}, capacity_gib: null }),
    await createVolume(deps, caller, { name: 'deleted', labels: {}, capacity_gib: null }),
  ]
  await rows('UPDATE volumes SET is_shared = true, used_bytes = 7 WHERE id = ANY($1::uuid[])', [[kept.id, deleted.id]])
  await deleteVolume(deps, caller, deleted.id)
  const lies = [{ org_id: caller.org_id, volume_id: kept.id, used_bytes: 1_000_000_000 }]
  for (const volumes of [null, [], lies]) {
    const answer = await sync(rogue, { capacity: HUGE, storage: SHARED, volumes })
    assert.deepEqual([answer.volumes ?? [], answer.discard_volumes], [[], []])
  }
  const left = await rows('SELECT used_bytes::integer, emptied_at FROM volumes WHERE id = ANY($1::uuid[])', [
    [kept.id, deleted.id],
  ])
  assert.deepEqual(left, [
    { used_bytes: 7, emptied_at: null },
    { used_bytes: 7, emptied_at: null },
  ])
  assert.match((await refusedClaimsOf(rogue)) ?? '', /shared volumes/)
  await assert.rejects(
    openVolumeFiles(deps, caller, { ref: { id: kept.id }, signal: AbortSignal.timeout(60_000) }),
    /no live worker/,
  )
  await assert.rejects(
    createJoinToken(deps, { name: 'both', lifeMs: 1, bounds: { ...BOUNDS, shared_volumes: true, org_ids: [] } }),
  )
  await retire(rogue)
  return { tries: 4, outcome: 'it was told of no volume, and the sizes and states of both volumes stayed the same' }
})

attack('gets sandboxes and volumes of an organization that its join token does not name', FACTS, async () => {
  const { deps, caller } = world.control
  const other = asId<OrgId>(deps.uuids.next())
  const rogue = await joinWith('foreigner', { max_vcpus: null, max_memory_mib: null, org_ids: [other] })
  await sync(rogue, { capacity: HUGE })
  assert.deepEqual(await place(4), [null, null, null, null])
  const volume = await createVolume(deps, caller, { name: 'homeless', labels: {}, capacity_gib: null })
  await assert.rejects(
    openVolumeFiles(deps, caller, { ref: { id: volume.id }, signal: AbortSignal.timeout(60_000) }),
    /no live worker/,
  )
  const own = await joinWith('countryman', { org_ids: [caller.org_id] })
  await sync(own, { capacity: HUGE })
  await waitUntil(
    async () => (await rows('SELECT 1 FROM runs WHERE worker_id = $1 AND ended_at IS NULL', [own.id])).length === 2,
  )
  assert.deepEqual(await rows('SELECT 1 FROM runs WHERE worker_id = $1', [rogue.id]), [])
  await retire(rogue, own)
  return { tries: 5, outcome: 'all 4 sandboxes waited for a worker that may have them, and the volume got no home' }
})

attack('promises organizations that its join token does not name isolation and caps', FACTS, async () => {
  const { deps, caller } = world.control
  const other = asId<OrgId>(deps.uuids.next())
  await sync(honest(), {})
  const rogue = await joinWith('boaster', { org_ids: [other] })
  const abilities = ISOLATION_LEVELS.map(isolationAbility)
  const claims = {
    driver: { name: 'test', isolation: 'none', abilities, images: [], default_disk_mib: 1 },
    storage: CAPPED,
  }
  await sync(rogue, claims)
  const isolated = (): Promise<unknown> => world.create({ labels: { [ISOLATION_LABEL]: 'microvm' } })
  const capped = (name: string): Promise<unknown> => createVolume(deps, caller, { name, labels: {}, capacity_gib: 1 })
  await assert.rejects(isolated(), { code: 'invalid_sandbox_config', message: /labels.sandyard.isolation/ })
  await assert.rejects(capped('promised'), { code: 'invalid_request', message: /capacity_gib can't be enforced/ })
  const own = await joinWith('keeper', { org_ids: [caller.org_id] })
  await sync(own, claims)
  await Promise.all([isolated(), capped('kept-promise')])
  await retire(rogue, own)
  return {
    tries: 2,
    outcome: 'a demand for microVMs and a cap were refused until a worker of the organization had both',
  }
})

attack('reports runs, sandboxes, volumes and tickets of another worker', FACTS, async () => {
  const { deps, caller } = world.control
  await sync(honest(), { capacity: { ...HUGE, vcpus: 1 } })
  const sandbox = await world.create({ resources: { vcpus: 1, memory_mib: 256, disk_size_mib: null } })
  await waitUntil(async () => (await workersOf([sandbox.id])).includes(world.worker_id))
  const [run] = await rows<{ id: string }>('SELECT id FROM runs WHERE sandbox_id = $1', [sandbox.id])
  assert.ok(run)
  const observed = (phase: 'running' | 'ended') =>
    ({ run_id: run.id, sandbox_id: sandbox.id, phase, outcome: { kind: 'exited', code: 0 } }) as never
  await sync(honest(), { capacity: { ...HUGE, vcpus: 1 }, observed_runs: [observed('running')] })
  const volume = await createVolume(deps, caller, { name: 'theirs', labels: {}, capacity_gib: null })
  await rows('UPDATE volumes SET home_worker_id = $2, used_bytes = 7 WHERE id = $1', [volume.id, world.worker_id])
  const before = await world.statusOf(sandbox.id)
  assert.equal(before.status, 'running')

  const rogue = await joinWith('liar')
  const answer = await sync(rogue, {
    observed_runs: [observed('ended')],
    stored_sandboxes: [sandbox.id],
    volumes: [{ org_id: caller.org_id, volume_id: volume.id, used_bytes: 1_000_000 }],
  })
  assert.deepEqual(await world.statusOf(sandbox.id), before)
  assert.deepEqual(await rows('SELECT used_bytes::integer FROM volumes WHERE id = $1', [volume.id]), [
    { used_bytes: 7 },
  ])
  assert.deepEqual(
    [answer.desired_runs ?? [], answer.discard_sandboxes, answer.volumes ?? [], answer.streams],
    [[], [], [], []],
  )
  assert.equal((await post({ ...rogue, id: world.worker_id }, {})).status, 400)

  const giveUp = new AbortController()
  const waiting = world.relay.open(world.worker_id, { kind: 'agent', run_id: run.id as never }, giveUp.signal)
  const [open] = world.relay.openTickets(world.worker_id)
  assert.ok(open !== undefined)
  const url = `${world.url.replace('http', 'ws')}/worker/v1/streams/${open.ticket}`
  const dialled = new WebSocket(url, { headers: { authorization: `Bearer ${rogue.credential}` } })
  const refusal = await new Promise<string>((resolve) => {
    dialled.on('open', () => resolve('open')).on('error', ({ message }) => resolve(message))
  })
  assert.match(refusal, /404/)
  assert.ok(world.relay.hasTicket(world.worker_id, open.ticket))
  giveUp.abort(new Error('the test is over'))
  await waiting.catch(() => null)
  await retire(rogue)
  return { tries: 6, outcome: 'the run, the sandbox, the volume and the ticket of the other worker stayed the same' }
})
