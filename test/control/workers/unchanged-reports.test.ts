import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { DesiredRun, ObservedRun, SyncAnswer, SyncRequest } from '../../../src/contract/workers/worker-protocol.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import { applyRunChanges, markStopping } from '../../../src/worker/agent/apply-run-changes.ts'
import { setLimits } from '../../support/quota-world.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'
import { reportOf } from '../../support/report.ts'

// Reports that are equal to the previous one, sent over HTTP as a worker does.

let world: WorkerWorld
before(async () => {
  world = await makeWorkerWorld()
})
after(() => world.close())

const INCARNATION = '00000000-0000-7000-8000-00000000000a'
let seq = 0
let desired_runs: readonly DesiredRun[] = []
let observed_runs: readonly ObservedRun[] = []
let known: Pick<SyncRequest, 'known_generation' | 'known_desired_version' | 'known_volumes_version'> = {
  known_generation: null,
  known_desired_version: null,
  known_volumes_version: null,
}

function report(): SyncRequest {
  const capacity = { vcpus: 16, memory_mib: 16_000, disk_mib: 100_000 }
  const stored_sandboxes = observed_runs.map(({ sandbox_id }) => sandbox_id)
  const own = { incarnation: INCARNATION, seq: ++seq, capacity, observed_runs, stored_sandboxes }
  return reportOf(world.worker_id, { ...own, ...known })
}

type Exchange = { readonly recorded: Promise<void>; readonly answer: Promise<SyncAnswer>; end(): void }

function send(credential = world.credential): Exchange {
  const recorded = Promise.withResolvers<void>()
  const ending = new AbortController()
  const exchange = async (): Promise<SyncAnswer> => {
    const response = await fetch(new URL('/worker/v1/sync', world.url), {
      method: 'POST',
      headers: { authorization: `Bearer ${credential}`, 'content-type': 'application/json' },
      body: JSON.stringify(report()),
      signal: ending.signal,
    })
    if (response.status !== 200) throw new Error(`refused: ${String(response.status)}`)
    recorded.resolve()
    return JSON.parse(await response.text())
  }
  const answer = exchange()
  answer.catch(recorded.reject)
  return { recorded: recorded.promise, answer, end: () => ending.abort() }
}

/**
 * Applies an answer as a worker does: the runs become as desired. Returns false if the answer contains something new.
 */
function learn(answer: SyncAnswer): boolean {
  const { generation, desired_version, volumes_version } = answer
  known = { known_generation: null, known_desired_version: desired_version, known_volumes_version: volumes_version }
  desired_runs = applyRunChanges(desired_runs, answer, markStopping)
  observed_runs = desired_runs.map(({ run_id, sandbox_id, desired_status }) =>
    desired_status === 'running'
      ? { run_id, sandbox_id, phase: 'running' }
      : { run_id, sandbox_id, phase: 'ended', outcome: { kind: 'stopped' } },
  )
  if (generation === null) return false
  known = { ...known, known_generation: generation }
  return true
}

/** Syncs until an answer contains nothing new. Returns the next sync, whose unchanged report the control plane holds. */
async function settle(): Promise<Exchange> {
  for (;;) {
    const first = send()
    await first.recorded
    const second = send() // makes the control plane answer the first sync
    const isQuiet = learn(await first.answer)
    const third = send()
    learn(await second.answer)
    await third.recorded
    if (isQuiet && known.known_generation !== null) return third
    third.end()
    await assert.rejects(third.answer)
  }
}

type WorkerRow = { readonly lease_expires_at: Date; readonly report_seq: number; readonly vcpus: number }

async function readWorker(): Promise<WorkerRow> {
  const [row] = await query<WorkerRow>('SELECT lease_expires_at, report_seq, vcpus FROM workers WHERE id = $1')
  assert.ok(row)
  return row
}

async function query<Row extends Record<string, unknown>>(text: string): Promise<readonly Row[]> {
  const { rows } = await world.control.deps.db.asSystem((q) => q.query<Row>({ text, values: [world.worker_id] }))
  return rows
}

test('each unchanged report prolongs the lease before the head of its answer is sent, and writes nothing else', async () => {
  let held = await settle()
  await query('UPDATE workers SET vcpus = 15 WHERE id = $1') // a report that is read in full would write 16
  for (let round = 0; round < 3; round++) {
    const before = await readWorker()
    const next = send()
    await next.recorded
    const after = await readWorker()
    assert.deepEqual([after.report_seq, after.vcpus], [seq, 15])
    assert.ok(after.lease_expires_at > before.lease_expires_at)
    assert.equal((await held.answer).generation, known.known_generation) // the later sync released the held one
    held = next
  }
  held.end()
  await assert.rejects(held.answer)
})

test('an unchanged report is processed in full if the lease is over, or if another incarnation has reported in the meantime', async () => {
  for (const change of [
    `UPDATE workers SET lease_expires_at = now() - interval '1 second', vcpus = 15 WHERE id = $1`,
    `UPDATE workers SET life = '00000000-0000-7000-8000-000000000001', vcpus = 15 WHERE id = $1`,
  ]) {
    const held = await settle()
    await query(change)
    const next = send()
    await next.recorded
    const after = await readWorker()
    assert.deepEqual([after.report_seq, after.vcpus], [seq, 16])
    await held.answer // the later sync released the held one
    next.end()
    await assert.rejects(next.answer)
  }
})

test('a change for the worker answers its held sync, or the next sync if no sync was held when the change was made', async () => {
  let held = await settle()
  const sandbox = await world.create()
  const told = await held.answer
  assert.deepEqual(told.desired_runs?.map(({ sandbox_id }) => sandbox_id), [sandbox.id]) // prettier-ignore
  learn(told)
  held = await settle()
  assert.equal((await world.statusOf(sandbox.id)).status, 'running')
  held.end()
  await assert.rejects(held.answer)
  // No sync of the worker is held now, so the next sync must find the stop in the database, although its report is
  // unchanged.
  await stopSandbox(world.control.deps, world.control.caller, { id: sandbox.id })
  const found = await send().answer
  assert.deepEqual(found.changes_only?.stopping_runs, [told.desired_runs?.[0]?.run_id])
  learn(found)
  held = await settle()
  assert.equal((await world.statusOf(sandbox.id)).status, 'stopped')
  held.end()
  await assert.rejects(held.answer)
})

test('a run that must start comes with what the plan of its organization allows', async () => {
  const { deps, caller } = world.control
  await setLimits(deps, caller, {
    max_concurrent_ephemeral_running: 2,
    max_concurrent_persistent_running: 3,
    max_memory_mib_per_sandbox: 2048,
  })
  const held = await settle()
  const sandbox = await world.create()
  const told = await held.answer
  const run = told.desired_runs?.find(({ sandbox_id }) => sandbox_id === sandbox.id)
  assert.deepEqual(run?.org_limits, { max_running: 5, max_vcpus_per_sandbox: null, max_memory_mib_per_sandbox: 2048 })
  learn(told)
})

test('an answer has only the runs that changed since the version that the worker knows', async () => {
  const others = desired_runs.length
  let held = await settle()
  const sandbox = await world.create()
  const ofSandbox = ({ sandbox_id }: { readonly sandbox_id: string }): boolean => sandbox_id === sandbox.id
  const told = await held.answer
  assert.deepEqual(
    [told.desired_runs?.some(ofSandbox), told.changes_only],
    [true, { stopping_runs: [], gone_runs: [] }],
  )
  learn(told)
  held = await settle()
  assert.equal(desired_runs.length, others + 1)
  await stopSandbox(world.control.deps, world.control.caller, { id: sandbox.id })
  const stopped = await held.answer
  const runId = told.desired_runs?.find(ofSandbox)?.run_id
  assert.deepEqual([stopped.desired_runs, stopped.changes_only], [[], { stopping_runs: [runId], gone_runs: [] }])
  learn(stopped)
  const run = desired_runs.find(ofSandbox)
  await (
    await settle()
  ).recorded
  assert.equal(desired_runs.some(ofSandbox), false)
  assert.equal(desired_runs.length, others)
  assert.equal(run?.desired_status, 'stopped')
  known = { ...known, known_desired_version: 'that of an answer of another replica', known_generation: null }
  const whole = await send().answer
  assert.deepEqual([whole.desired_runs?.length, whole.changes_only], [others, undefined])
  learn(whole)
})

test('two reports in flight that know the same version both get only what changed since, from one process', async () => {
  const held = await settle()
  const before = known
  const sandbox = await world.create()
  const first = await held.answer
  known = { ...before, known_generation: null }
  const second = await send().answer
  for (const { desired_runs: runs, changes_only } of [first, second])
    assert.deepEqual(
      [runs?.map(({ sandbox_id }) => sandbox_id), changes_only],
      [[sandbox.id], { stopping_runs: [], gone_runs: [] }],
    )
  assert.equal(typeof first.answered_by, 'string')
  assert.equal(second.answered_by, first.answered_by)
  learn(second)
})

test('a run comes again once it runs only if it may have come with the credential of a registry', async () => {
  const { deps, caller } = world.control
  await setLimits(deps, caller, { max_concurrent_persistent_running: null })
  const createAnother = async (): Promise<readonly string[]> => {
    const held = await settle()
    const { id } = await world.create()
    const told = await held.answer
    learn(told)
    return told.desired_runs?.map(({ sandbox_id }) => (sandbox_id === id ? 'the new one' : sandbox_id)) ?? []
  }
  await createAnother() // its run came before, and runs now
  assert.deepEqual(await createAnother(), ['the new one'])
  await deps.db.asSystem((q) =>
    q.query({
      text: `INSERT INTO registry_credentials (id, org_id, host, username, password_sealed, created_at)
             VALUES ($1, $2, 'another.example', 'puller', '\\x00', now())`,
      values: [deps.uuids.next(), caller.org_id],
    }),
  )
  await createAnother()
  assert.equal((await createAnother()).length, 2)
})

test('a whole report with a replaced credential is refused and records nothing, also where the credential was known', async () => {
  const held = await settle()
  const before = await readWorker()
  known = { ...known, known_generation: null }
  await query(`UPDATE workers SET credential_sha256 = sha256('another') WHERE id = $1`)
  await assert.rejects(send().recorded, /refused: 401/)
  assert.deepEqual(await readWorker(), before)
  await query(`UPDATE workers SET credential_sha256 = sha256('${world.credential}') WHERE id = $1`)
  const whole = send()
  await whole.recorded
  assert.notDeepEqual(await readWorker(), before)
  whole.end()
  await assert.rejects(whole.answer)
  await held.answer
})

test('an unchanged report of a removed worker is refused, and so is one with another credential', async () => {
  const held = await settle()
  await assert.rejects(send('the-credential-of-somebody-else').recorded, /refused: 401/)
  await query('UPDATE workers SET removed_at = now() WHERE id = $1')
  await assert.rejects(send().recorded, /refused: 401/)
  await held.answer // the refused sync released this one, because the process had cached the worker's credential
})
