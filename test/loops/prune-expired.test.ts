import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { createApiKey, revokeApiKey } from '../../src/control/orgs/api-keys.ts'
import { listEvents } from '../../src/control/events/read-events.ts'
import { claimIdempotencyKey } from '../../src/control/requests/idempotency.ts'
import { createSandbox } from '../../src/control/sandboxes/create-sandbox.ts'
import { deleteSandbox } from '../../src/control/sandboxes/delete-sandbox.ts'
import { moveSandbox } from '../../src/control/sandboxes/transitions/transition.ts'
import { recordReport } from '../../src/control/workers/record-report.ts'
import { makeAnswer } from '../../src/control/workers/sync-answer.ts'
import { registerWorker } from '../../src/control/workers/worker-join.ts'
import type { SandboxId, WorkerId } from '../../src/domain/ids.ts'
import { SYSTEM_ACTOR } from '../../src/domain/orgs/caller.ts'
import { DAY_MS } from '../../src/domain/usage/metering.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { minUuidAt } from '../../src/lib/uuid.ts'
import { makePlacePendingLoop } from '../../src/loops/place-pending.ts'
import { makePruneExpiredLoop, type Retention } from '../../src/loops/prune-expired.ts'
import { makeRollUpUsageLoop } from '../../src/loops/roll-up-usage.ts'
import * as retentionHorizons from '../../src/store/usage/retention-horizons.ts'
import * as runs from '../../src/store/sandboxes/runs.ts'
import { makeTestControl, type TestControl } from '../support/control.ts'
import { reportOf } from '../support/report.ts'
import { PLAIN_SPEC } from '../support/spec.ts'
import { makeTestClock, type TestClock } from '../support/test-clock.ts'

const never = new AbortController().signal
const FOR_EVER: Retention = { sandboxes: 0, runs: 0, events: 0, usage: 0 }
const cause = { actor: SYSTEM_ACTOR, code: 'worker_report' } as const

let clock: TestClock
let control: TestControl
let worker: WorkerId
let seq = 0
before(async () => {
  // The clock is 100 days late, so that a test can let days pass that are in the past of the database too.
  clock = makeTestClock(new Date(systemClock.now().getTime() - 100 * DAY_MS))
  control = await makeTestControl({ clock })
  worker = await registerWorker(control.deps, { name: 'home', credential: 'credential-of-home' })
  await report([])
})
after(() => control.close())

async function report(stored_sandboxes: readonly SandboxId[]) {
  const sent = reportOf(worker, { seq: ++seq, stored_sandboxes })
  const recorded = await recordReport(control.deps, sent)
  assert.ok(recorded !== null)
  return { sent, recorded }
}

/** Prunes as a server does that has run all the time. */
async function prune(retention: Partial<Retention>): Promise<void> {
  await control.deps.db.asSystem((q) => retentionHorizons.setClock(q, clock.now()))
  const loop = makePruneExpiredLoop({ ...control.deps, retention: { ...FOR_EVER, ...retention } })
  while ((await loop.run(never)) !== null);
}

async function count(text: string, values: readonly unknown[] = []): Promise<number> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ readonly count: number }>({ text: `SELECT count(*) AS count FROM ${text}`, values }),
  )
  return rows[0]?.count ?? 0
}

async function create(start: boolean): Promise<SandboxId> {
  const registry = { mode: 'auto' } as const
  const spec = { ...PLAIN_SPEC, labels: { kind: 'test' } }
  const input = { spec, name: null, slug: null, registry, start, waitMs: null, signal: never }
  return (await createSandbox(control.deps, control.caller, input)).id
}

/** Lets a sandbox run for an hour. */
async function runOnce(id: SandboxId): Promise<void> {
  const { deps } = control
  await report([])
  await makePlacePendingLoop(deps).run(never)
  await moveSandbox(deps, { sandbox_id: id, run_id: null, event: 'worker_running', cause })
  clock.advance(3_600_000)
  for (const event of ['stop_requested', 'worker_stopped'] as const)
    await moveSandbox(deps, { sandbox_id: id, run_id: null, event, cause })
  await makeRollUpUsageLoop(deps).run(never)
}

test('a sandbox goes with its labels once it was deleted for longer than it is kept, and its worker still discards its disk', async () => {
  const { deps, caller } = control
  const [old, young, living] = [await create(true), await create(false), await create(false)]
  await runOnce(old)
  await deleteSandbox(deps, caller, { id: old })
  clock.advance(3 * DAY_MS)
  await deleteSandbox(deps, caller, { id: young })
  await prune({})
  assert.equal(await count('sandboxes WHERE id = $1', [old]), 1)
  await prune({ sandboxes: 2 })
  for (const [id, expected] of [
    [old, 0],
    [young, 1],
    [living, 1],
  ] as const)
    // prettier-ignore
    assert.equal(await count('sandboxes WHERE id = $1', [id]), expected)
  assert.equal(await count('runs WHERE sandbox_id = $1', [old]), 1, 'a run is kept for a time of its own')
  const { sent, recorded } = await report([old, living])
  assert.ok(recorded.has_more)
  const { discard_sandboxes } = await makeAnswer({ ...deps, tickets: { openTickets: () => [] } }, sent)
  assert.deepEqual(discard_sandboxes, [old])
})

test('a sandbox with an open run stays until the run ends', async () => {
  const { deps, caller } = control
  const id = await create(true)
  await report([])
  await makePlacePendingLoop(deps).run(never)
  await deleteSandbox(deps, caller, { id })
  clock.advance(3 * DAY_MS)
  await prune({ sandboxes: 1, runs: 1 })
  assert.equal(await count('sandboxes WHERE id = $1', [id]), 1)
  await moveSandbox(deps, { sandbox_id: id, run_id: null, event: 'worker_stopped', cause })
  await prune({ sandboxes: 1 })
  assert.equal(await count('sandboxes WHERE id = $1', [id]), 0)
})

test('old runs go after they are added to their days; the latest run of a sandbox, which has its log, stays', async () => {
  const { deps, caller } = control
  const id = await create(true)
  await runOnce(id)
  await moveSandbox(deps, { sandbox_id: id, run_id: null, event: 'start_admitted', cause })
  await runOnce(id)
  const latest = await deps.db.asOrg(caller.org_id, (q) => runs.lastPlacedRunOf(q, id))
  clock.advance(5 * DAY_MS)
  await deps.db.asSystem((q) =>
    q.query({ text: 'UPDATE runs SET rolled_up_at = NULL WHERE sandbox_id = $1', values: [id] }),
  )
  await prune({ runs: 2 })
  assert.equal(await count('runs WHERE sandbox_id = $1', [id]), 2, 'a run went before it was rolled up')
  await deps.db.asSystem((q) =>
    q.query({ text: 'UPDATE runs SET rolled_up_at = ended_at WHERE sandbox_id = $1', values: [id] }),
  )
  await prune({ runs: 2 })
  assert.equal(await count('runs WHERE sandbox_id = $1', [id]), 1)
  assert.deepEqual(await deps.db.asOrg(caller.org_id, (q) => runs.lastPlacedRunOf(q, id)), latest)
  await deleteSandbox(deps, caller, { id })
  await prune({ runs: 2 })
  assert.equal(await count('runs WHERE sandbox_id = $1', [id]), 0)
})

test('the names of a sandbox go with the usage, but not before its worker was there to discard its disk', async () => {
  const { deps, caller } = control
  const id = await create(true)
  await runOnce(id)
  await deleteSandbox(deps, caller, { id })
  clock.advance(3 * DAY_MS)
  await prune({ sandboxes: 1 })
  clock.advance(10 * DAY_MS)
  await prune({ usage: 5 })
  assert.equal(await count('pruned_sandboxes WHERE id = $1', [id]), 1)
  await report([])
  await prune({ usage: 5 })
  assert.equal(await count('pruned_sandboxes WHERE id = $1', [id]), 0)
  assert.equal(await count('usage_days WHERE sandbox_id = $1', [id]), 0)
})

test('old events go in many small steps; nothing else deletes an event, and none of the last day goes', async () => {
  const { deps, caller } = control
  const at = clock.now()
  await deps.db.asSystem((q) =>
    q.query({
      text: `INSERT INTO events (id, org_id, timestamp, category, event_type, actor, payload)
             SELECT overlay($2::text placing lpad(n::text, 12, '0') from 25)::uuid, $1, $3, 'sandbox', 'sandbox_running', $4, '{}'
             FROM generate_series(1, 1300) n`,
      values: [caller.org_id, minUuidAt(at), at, JSON.stringify(SYSTEM_ACTOR)],
    }),
  )
  clock.advance(10 * DAY_MS)
  await create(false)
  await prune({ events: 20 })
  assert.ok((await count('events')) > 1_300)
  await prune({ events: 2 })
  const { items } = await listEvents(deps, caller, { ...PAGE, limit: 100 })
  assert.deepEqual(new Set(items.map(({ event_type }) => event_type)), new Set(['sandbox_created']))
  assert.equal(await count('events'), items.length)
  const attempts = ['DELETE FROM events', `SELECT sandyard_prune_events(now(), '${minUuidAt(new Date(0))}', 10)`]
  for (const text of attempts) {
    await assert.rejects(
      deps.db.asSystem((q) => q.query({ text })),
      /permission denied|kept for a day/,
    )
    await assert.rejects(control.asOwner(text), /append-only|kept for a day/)
  }
})
const PAGE = { cursor: null, event_type: null, since: null, until: null }

test('API keys go once they were revoked or expired for longer than events are kept, and valid ones stay', async () => {
  const { deps, caller } = control
  const make = async (name: string, expires_at: Date | null = null) =>
    (await createApiKey(deps, caller, { name, scopes: ['read'], expires_at })).id
  const soon = new Date(clock.now().getTime() + DAY_MS / 2)
  const [valid, revoked, expired, later] = [await make('a'), await make('b'), await make('c', soon), await make('d')]
  await revokeApiKey(deps, caller, revoked)
  clock.advance(4 * DAY_MS)
  await revokeApiKey(deps, caller, later)
  const left = async (ids: readonly string[]) => await count('api_keys WHERE id = ANY($1)', [ids])
  await prune({})
  assert.equal(await left([valid, revoked, expired, later]), 4)
  await prune({ events: 2 })
  assert.deepEqual([await left([valid, later]), await left([revoked, expired])], [2, 0])
})

test('a reply to an Idempotency-Key is remembered as long as the operator says', async () => {
  const { deps, caller } = control
  const expiryOf = async (key: string, idempotencyKeptMs: number | null): Promise<Date | undefined> => {
    const settings = { ...deps.settings, idempotencyKeptMs }
    const request = { key, request_sha256: Buffer.alloc(32), signal: never }
    const claimed = await claimIdempotencyKey({ ...deps, settings }, caller, request)
    assert.equal(claimed.kind, 'serve')
    if (claimed.kind === 'serve') await claimed.end({ kind: 'given_up' })
    const { rows } = await deps.db.asSystem((q) =>
      q.query<{ readonly expires_at: Date }>({
        text: 'SELECT expires_at FROM idempotency WHERE key = $1',
        values: [key],
      }),
    )
    return rows[0]?.expires_at
  }
  assert.deepEqual(await expiryOf('hour', 3_600_000), new Date(clock.now().getTime() + 3_600_000))
  assert.equal((await expiryOf('ever', null))?.getUTCFullYear(), 9_999)
})

test('a clock that is a year ahead deletes a day of rows an hour at most, and says so', async () => {
  const { deps } = control
  await deps.db.asSystem((q) => retentionHorizons.setClock(q, clock.now()))
  const reachedMs = async () => (await deps.db.asSystem((q) => retentionHorizons.findClock(q)))?.getTime() ?? 0
  const fromMs = clock.now().getTime()
  const warnings: string[] = []
  const log = { ...deps.log, warn: (_: object, text: string) => warnings.push(text) }
  const ahead = { ...clock, now: () => new Date(clock.now().getTime() + 365 * DAY_MS) }
  const loop = makePruneExpiredLoop({ ...deps, clock: ahead, log, retention: { ...FOR_EVER, events: 30 } })
  const pass = async () => {
    while ((await loop.run(never)) !== null);
  }
  await pass()
  assert.equal(await reachedMs(), fromMs)
  for (let hours = 1; hours <= 3; hours++) {
    clock.advance(3_600_000)
    await pass()
    assert.equal(await reachedMs(), fromMs + hours * DAY_MS)
  }
  assert.equal(warnings.length, 4)
  await prune({})
  assert.equal(await reachedMs(), clock.now().getTime())
})
