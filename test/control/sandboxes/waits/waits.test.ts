import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { makeControlDeps } from '../../../../src/control/make-deps.ts'
import { sandboxTopic } from '../../../../src/control/topics.ts'
import { createSandbox } from '../../../../src/control/sandboxes/create-sandbox.ts'
import { withdrawCreate } from '../../../../src/control/sandboxes/withdraw-create.ts'
import { getSandbox } from '../../../../src/control/sandboxes/read-sandboxes.ts'
import { CHECK_ALL_EVERY_MS, makeWaitHub, statusMask } from '../../../../src/control/sandboxes/waits/wait-hub.ts'
import { registerWorker } from '../../../../src/control/workers/worker-join.ts'
import { moveSandbox } from '../../../../src/control/sandboxes/transitions/transition.ts'
import { SYSTEM_ACTOR } from '../../../../src/domain/orgs/caller.ts'
import { startSandbox } from '../../../../src/control/sandboxes/start-sandbox.ts'
import type { Sandbox } from '../../../../src/domain/sandboxes/sandbox.ts'
import { makePlacePendingLoop } from '../../../../src/loops/place-pending.ts'
import { recordReport } from '../../../../src/control/workers/record-report.ts'
import { systemClock } from '../../../../src/lib/clock.ts'
import { makeTestControl, type TestControl } from '../../../support/control.ts'
import { addOrg } from '../../../support/orgs.ts'
import { PLAIN_SPEC } from '../../../support/spec.ts'
import { makeTestClock } from '../../../support/test-clock.ts'
import { TIMEOUT_FACTOR } from '../../../support/timeout-factor.ts'
import { waitUntil } from '../../../support/wait.ts'
import { reportOf } from '../../../support/report.ts'

let named = 0
/** Returns a name that no sandbox of these tests has. */
const newName = (): string => `box-${String(++named)}`

const CAPACITY = 2
/** Of tests whose clock stands still: a wait that they don't end would never end. */
const LIMITED = { timeout: 20_000 * TIMEOUT_FACTOR }
const never = new AbortController().signal
const cause = { actor: SYSTEM_ACTOR, code: 'worker_report' } as const

let control: TestControl
before(async () => {
  control = await makeTestControl({ waitCapacity: CAPACITY })
  const worker = await registerWorker(control.deps, { name: 'w1', credential: 'credential-of-a-test' })
  await recordReport(control.deps, reportOf(worker))
})
after(() => control.close())

type Options = {
  readonly name?: string
  readonly waitMs: number
  readonly signal?: AbortSignal
  readonly onTimeout?: 'keep' | 'cancel'
}

function create({ name = newName(), signal = never, ...wait }: Options, deps = control.deps): Promise<Sandbox> {
  const registry = { mode: 'auto' } as const
  const input = { spec: PLAIN_SPEC, name, slug: null, registry, start: true, signal, ...wait }
  return createSandbox(deps, control.caller, input)
}

/** Moves a sandbox to another status while its create waits, as a worker's report would. */
async function report(
  name: string,
  event: 'worker_running' | 'worker_start_failed',
  deps = control.deps,
): Promise<void> {
  const { id } = await waitUntil(async () => {
    const { rows } = await deps.db.asSystem((q) =>
      q.query<Pick<Sandbox, 'id'>>({ text: 'SELECT id FROM sandboxes WHERE name = $1', values: [name] }),
    )
    return rows[0]
  })
  await makePlacePendingLoop(deps).run(never)
  await moveSandbox(deps, { sandbox_id: id, run_id: null, event, cause: { ...cause, message: 'no such image' } })
}

test('a wait ends as soon as the sandbox runs', LIMITED, async () => {
  const deps = makeControlDeps({ ...control.deps, clock: makeTestClock(systemClock.now()) }) // no time passes
  const name = newName()
  const [sandbox] = await Promise.all([create({ name, waitMs: 20_000 }, deps), report(name, 'worker_running')])
  assert.equal(sandbox.status, 'running')
  assert.equal(control.deps.waitPermits.inUse, 0)
})

test('a wait that times out is answered with the sandbox as it is, still starting', async () => {
  assert.equal((await create({ waitMs: 50 })).status, 'starting')
  assert.equal((await create({ waitMs: 0 })).status, 'starting')
})

test('a create that cancels at its timeout leaves no sandbox, and its name is free', async () => {
  const name = newName()
  const before = await countStarting()
  const refusal = { code: 'start_timed_out', message: /did not run within 0\.05 s.*it was deleted/ }
  await assert.rejects(create({ name, waitMs: 50, onTimeout: 'cancel' }), refusal)
  const leaving = AbortSignal.abort(new Error('the client left'))
  await assert.rejects(create({ name, waitMs: 20_000, onTimeout: 'cancel', signal: leaving }), {
    code: 'start_timed_out',
  })
  assert.equal(await countStarting(), before)
  assert.equal((await create({ name, waitMs: 0 })).name, name)
})

test('a create that cancels keeps a sandbox that runs or has failed before its withdrawal', async () => {
  const runs = newName()
  const wait = { waitMs: 20_000, onTimeout: 'cancel' } as const
  const [running] = await Promise.all([create({ name: runs, ...wait }), report(runs, 'worker_running')])
  const fails = newName()
  const [failed] = await Promise.all([create({ name: fails, ...wait }), report(fails, 'worker_start_failed')])
  assert.deepEqual([running.status, failed.status], ['running', 'failed'])
  // The wait saw it starting, but it runs by now.
  await withdrawCreate(control.deps, control.caller, { ...running, status: 'starting' }, 1_000)
  assert.equal((await getSandbox(control.deps, control.caller, { id: running.id })).status, 'running')
})

test('a start that fails during its wait is answered with the failure', async () => {
  const name = newName()
  const [sandbox] = await Promise.all([create({ name, waitMs: 20_000 }), report(name, 'worker_start_failed')])
  assert.deepEqual([sandbox.status, sandbox.last_failure_message], ['failed', 'no such image'])
})

test('without a wait permit a create is refused before anything is stored, unless it does not wait', async () => {
  const leaving = new AbortController()
  const before = await countStarting()
  const waiting = [1, 2].map(() => create({ waitMs: 20_000, signal: leaving.signal }))
  await waitUntil(() => control.deps.waitPermits.inUse === CAPACITY)
  await waitUntil(async () => (await countStarting()) === before + CAPACITY)
  const count = before + CAPACITY
  await assert.rejects(create({ waitMs: 1_000 }), { code: 'rate_limited', retryAfterSeconds: 1 })
  assert.equal(await countStarting(), count)
  leaving.abort(new Error('the client left'))
  await Promise.all(waiting)
  assert.equal(control.deps.waitPermits.inUse, 0)
})

async function countStarting(): Promise<number> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ readonly count: number }>({ text: `SELECT count(*) AS count FROM sandboxes WHERE status = 'starting'` }),
  )
  return rows[0]?.count ?? 0
}

test('a client that disconnects ends its wait and releases the permit', async () => {
  const leaving = new AbortController()
  const waiting = create({ waitMs: 60_000, signal: leaving.signal })
  await waitUntil(() => control.deps.waitPermits.inUse === 1)
  leaving.abort(new Error('the client left'))
  assert.equal((await waiting).status, 'starting')
  assert.equal(control.deps.waitPermits.inUse, 0)
})

test('a wait whose notification is lost ends some seconds later, not at its timeout', LIMITED, async () => {
  const { notifications } = control.deps
  const deaf = {
    publish: () => undefined,
    subscribe: () => () => undefined,
    [Symbol.asyncDispose]: () => notifications[Symbol.asyncDispose](),
  }
  const clock = makeTestClock(systemClock.now())
  const deps = makeControlDeps({ ...control.deps, clock, notifications: deaf })
  const name = newName()
  const waiting = create({ name, waitMs: 30_000 }, deps)
  await report(name, 'worker_running')
  await waitUntil(() => clock.sleepers > 0)
  clock.advance(CHECK_ALL_EVERY_MS)
  assert.equal((await waiting).status, 'running')
})

test('a second start joins the first and ends with it', async () => {
  const { notifications } = control.deps
  const name = newName()
  const { id } = await create({ name, waitMs: 0 })
  const subscribed = Promise.withResolvers<void>()
  const deps = makeControlDeps({
    ...control.deps,
    notifications: {
      ...notifications,
      subscribe(topic, callback) {
        if (topic === sandboxTopic(id)) subscribed.resolve()
        return notifications.subscribe(topic, callback)
      },
    },
  })
  const joined = startSandbox(deps, control.caller, { id }, { waitMs: 20_000, signal: never })
  await subscribed.promise // the second start has subscribed and waits
  await report(name, 'worker_running')
  assert.equal((await joined).status, 'running')
})

test('a wait for a sandbox of another organization finds no sandbox, and the waits of that organization go on', async () => {
  const { deps, caller } = control
  const stranger = await addOrg(deps, 'waits-for-others')
  for (const order of ['owner first', 'stranger first'] as const) {
    const name = newName()
    const { id } = await create({ name, waitMs: 0 })
    const firstLook = Promise.withResolvers<void>()
    let looks = 0
    const hub = makeWaitHub({
      ...deps,
      async readFound(wanted) {
        if (wanted.org_id === stranger.org_id && ++looks === 1) await firstLook.promise
        return deps.readFound(wanted)
      },
    })
    const waitOf = (org_id: Sandbox['org_id']) =>
      hub.wait({ org_id, id, mask: statusMask(['running']), run_id: null }, { waitMs: 20_000, signal: never })
    const orgs = [caller.org_id, stranger.org_id]
    const waits = (order === 'owner first' ? orgs : orgs.toReversed()).map(waitOf)
    const [owners, strangers] = order === 'owner first' ? waits : waits.toReversed()
    deps.notifications.publish([`sandbox:${id}`])
    await report(name, 'worker_running')
    const seen = await owners
    assert.ok(seen !== null && seen !== undefined && seen !== 'left', order)
    assert.equal(seen.status, 'running', order)
    firstLook.resolve()
    assert.equal(await strangers, null, order)
  }
})
