import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { SyncAnswer, SyncRequest } from '../../../src/contract/workers/worker-protocol.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import type { ObservedRun } from '../../../src/contract/workers/worker-protocol.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'
import { waitUntil } from '../../support/wait.ts'
import { reportOf } from '../../support/report.ts'

// Syncs that say what the one before said, over HTTP, as a worker sends them.

let world: WorkerWorld
before(async () => {
  world = await makeWorkerWorld()
})
after(() => world.close())

const LIFE = '00000000-0000-7000-8000-00000000000a'
let seq = 0
let known: Pick<SyncRequest, 'known_version' | 'known_volumes_version'> = {
  known_version: null,
  known_volumes_version: null,
}
let seen: readonly ObservedRun[] = []

function report(): SyncRequest {
  const capacity = { vcpus: 16, memory_mib: 16_000, disk_mib: 100_000 }
  const stored = seen.map(({ sandbox_id }) => sandbox_id)
  return reportOf(world.worker_id, { life: LIFE, seq: ++seq, capacity, seen, stored, ...known })
}

type Exchange = { readonly taken: Promise<void>; readonly answer: Promise<SyncAnswer>; end(): void }

function send(credential = world.credential): Exchange {
  const taken = Promise.withResolvers<void>()
  const ending = new AbortController()
  const exchange = async (): Promise<SyncAnswer> => {
    const response = await fetch(new URL('/worker/v1/sync', world.url), {
      method: 'POST',
      headers: { authorization: `Bearer ${credential}`, 'content-type': 'application/json' },
      body: JSON.stringify(report()),
      signal: ending.signal,
    })
    if (response.status !== 200) throw new Error(`refused: ${String(response.status)}`)
    taken.resolve()
    return JSON.parse(await response.text())
  }
  const answer = exchange()
  answer.catch(taken.reject)
  return { taken: taken.promise, answer, end: () => ending.abort() }
}

/** Takes in what is wanted, until a sync is held. */
async function settle(): Promise<Exchange> {
  for (;;) {
    const sync = send()
    await sync.taken
    const answer = await Promise.race([sync.answer, world.control.deps.clock.sleep(300)])
    if (answer === undefined) return sync
    known = { known_version: answer.wanted_version, known_volumes_version: answer.volumes_version }
    if (answer.wanted !== null)
      seen = answer.wanted.map(({ run_id, sandbox_id, desired }) => ({
        run_id,
        sandbox_id,
        ...(desired === 'running' ? { phase: 'running' } as const : { phase: 'ended', outcome: { kind: 'stopped' } } as const),
      })) // prettier-ignore
  }
}

async function leaseOf(): Promise<{ readonly at: number; readonly seq: number }> {
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<{ lease_expires_at: Date; report_seq: number }>({
      text: 'SELECT lease_expires_at, report_seq FROM workers WHERE id = $1',
      values: [world.worker_id],
    }),
  )
  const [row] = rows
  assert.ok(row)
  return { at: row.lease_expires_at.getTime(), seq: row.report_seq }
}

test('a sync that says nothing new prolongs the lease before its head is answered, each time', async () => {
  let held = await settle()
  for (let round = 0; round < 3; round++) {
    const before = await leaseOf()
    const next = send()
    await next.taken
    const after = await leaseOf()
    assert.equal(after.seq, seq)
    assert.ok(after.at > before.at)
    await held.answer // released by the later one
    held = next
  }
  held.end()
  await assert.rejects(held.answer)
})

test('what becomes wanted while such a sync is held is told by it, and so is what became wanted unseen in between', async () => {
  let held = await settle()
  const next = send()
  await held.answer
  await next.taken
  const sandbox = await world.create()
  const told = await next.answer
  assert.deepEqual(told.wanted?.map(({ sandbox_id }) => sandbox_id), [sandbox.id]) // prettier-ignore
  held = await settle()
  await waitUntil(async () => (await world.statusOf(sandbox.id)).status === 'running')
  held.end()
  await assert.rejects(held.answer)
  held = await settle()
  held.end()
  await assert.rejects(held.answer)
  // Nobody of this worker is here to be woken: the next sync, whose words are the same, must find it in the database.
  await stopSandbox(world.control.deps, world.control.caller, { id: sandbox.id })
  const found = await send().answer
  assert.deepEqual(found.wanted?.map(({ desired }) => desired), ['stopped']) // prettier-ignore
  known = { known_version: found.wanted_version, known_volumes_version: found.volumes_version }
  seen = seen.map((run) => ({ ...run, phase: 'ended', outcome: { kind: 'stopped' } }))
  held = await settle()
  await waitUntil(async () => (await world.statusOf(sandbox.id)).status === 'stopped')
  held.end()
  await assert.rejects(held.answer)
})

test('a worker that was removed, or another credential, is refused though its words are the same', async () => {
  const held = await settle()
  await assert.rejects(send('the-credential-of-somebody-else').taken, /refused: 401/)
  const { db } = world.control.deps
  await db.asSystem((q) =>
    q.query({ text: 'UPDATE workers SET removed_at = now() WHERE id = $1', values: [world.worker_id] }),
  )
  await assert.rejects(send().taken, /refused: 401/)
  await held.answer // released by the later one
})
