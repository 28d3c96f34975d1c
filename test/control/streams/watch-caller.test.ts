import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { createApiKey, revokeApiKey } from '../../../src/control/orgs/api-keys.ts'
import { authenticate } from '../../../src/control/orgs/authenticate.ts'
import type { ControlDeps } from '../../../src/control/make-deps.ts'
import { makeControlDeps } from '../../../src/control/make-deps.ts'
import { resumeOrg, suspendOrg } from '../../../src/control/orgs/orgs.ts'
import { CallerEnded, type CallerWatch } from '../../../src/control/streams/watch-caller.ts'
import type { Caller } from '../../../src/domain/orgs/caller.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { openNotifications, type Notifications } from '../../../src/store/postgres/notifications.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addOrg } from '../../support/orgs.ts'
import { makeTestClock } from '../../support/test-clock.ts'
import { waitUntil } from '../../support/wait.ts'

let control: TestControl
let otherWake: Notifications
before(async () => {
  control = await makeTestControl()
  const log = makeLog('error')
  otherWake = await openNotifications({ connectionString: control.databaseUrl, clock: systemClock, log, windowMs: 5 })
})
after(async () => {
  await otherWake[Symbol.asyncDispose]()
  await control.close()
})

/** Makes the dependencies of another replica on the same database. */
const replica = (): ControlDeps => makeControlDeps({ ...control.deps, notifications: otherWake })

/** Notifications that are never delivered. */
const deaf: Notifications = {
  publish: () => undefined,
  subscribe: () => () => undefined,
  [Symbol.asyncDispose]: () => Promise.resolve(),
}

async function makeCaller(expires_at: Date | null = null): Promise<Caller> {
  const { key } = await createApiKey(control.deps, control.caller, { name: 'made', scopes: ['write'], expires_at })
  const caller = await authenticate(control.deps, key)
  assert.ok(caller !== null)
  return caller
}

const endOf = ({ signal }: CallerWatch): string | null =>
  signal.aborted && signal.reason instanceof CallerEnded ? signal.reason.why : null

test('a revoked key ends its watches on every replica, and no others', async () => {
  const [revoked, other] = [await makeCaller(), await makeCaller()]
  const elsewhere = replica()
  const watches = [
    control.deps.callerWatcher.watch(revoked),
    elsewhere.callerWatcher.watch(revoked),
    elsewhere.callerWatcher.watch(revoked),
  ]
  const untouched = elsewhere.callerWatcher.watch(other)
  await waitUntil(() => elsewhere.callerWatcher.keys === 2)
  await revokeApiKey(control.deps, control.caller, revoked.api_key_id)
  await waitUntil(() => watches.every((watch) => endOf(watch) === 'api_key_revoked'))
  assert.equal(untouched.signal.aborted, false)
  untouched.stop()
  assert.equal(elsewhere.callerWatcher.keys, 0)
})

test("a suspension ends the watches of the organization's keys", async () => {
  const member = await addOrg(control.deps, 'to be suspended')
  const elsewhere = replica()
  const watch = elsewhere.callerWatcher.watch(member)
  await suspendOrg(control.deps, member, null)
  await waitUntil(() => endOf(watch) === 'org_suspended')
  await resumeOrg(control.deps, member)
  const again = elsewhere.callerWatcher.watch(member)
  await control.deps.db.asSystem((q) => q.query({ text: 'SELECT 1' }))
  assert.equal(again.signal.aborted, false)
  again.stop()
})

test('a watch that ignores suspensions continues through one, and still ends when its key is revoked', async () => {
  const member = await addOrg(control.deps, 'to be suspended and revoked')
  const before = control.deps.callerWatcher.watch(member, { outlastsSuspension: true })
  const channel = control.deps.callerWatcher.watch(member)
  await suspendOrg(control.deps, member, null)
  await waitUntil(() => endOf(channel) === 'org_suspended')
  const during = control.deps.callerWatcher.watch(member, { outlastsSuspension: true })
  const late = control.deps.callerWatcher.watch(member)
  await waitUntil(() => endOf(late) === 'org_suspended')
  assert.deepEqual([before.signal.aborted, during.signal.aborted], [false, false])
  await revokeApiKey(control.deps, { org_id: member.org_id, actor: member.actor }, member.api_key_id)
  await waitUntil(() => [before, during].every((watch) => endOf(watch) === 'api_key_revoked'))
  assert.equal(control.deps.callerWatcher.keys, 0)
})

test('a watch on a revoked key ends at once', async () => {
  const caller = await makeCaller()
  await revokeApiKey(control.deps, control.caller, caller.api_key_id)
  const watch = control.deps.callerWatcher.watch(caller)
  await waitUntil(() => endOf(watch) === 'api_key_revoked')
})

test("a watch ends at the key's expiry", async () => {
  const clock = makeTestClock(new Date())
  const deps = makeControlDeps({ ...control.deps, clock, notifications: deaf })
  const watch = deps.callerWatcher.watch(await makeCaller(new Date(clock.now().getTime() + 70_000)))
  for (const ms of [30_000, 30_000, 9_999]) {
    await waitUntil(() => clock.sleepers === 1)
    clock.advance(ms)
  }
  await waitUntil(() => clock.sleepers === 1)
  assert.equal(watch.signal.aborted, false)
  clock.advance(1)
  await waitUntil(() => endOf(watch) === 'api_key_expired')
})

test('without notifications, all watches of a revoked key end within 30 s, by a single query', async () => {
  const clock = makeTestClock(new Date())
  let looks = 0
  const db = { ...control.deps.db }
  const asSystem: typeof db.asSystem = (fn) => {
    looks += 1
    return control.deps.db.asSystem(fn)
  }
  const deps = makeControlDeps({ ...control.deps, clock, notifications: deaf, db: { ...db, asSystem } })
  const caller = await makeCaller()
  const watches = Array.from({ length: 10_000 }, () => deps.callerWatcher.watch(caller))
  await waitUntil(() => clock.sleepers === 1)
  assert.equal(looks, 1)
  await revokeApiKey(control.deps, control.caller, caller.api_key_id)
  clock.advance(30_000)
  await waitUntil(() => watches.every((watch) => endOf(watch) === 'api_key_revoked'))
  assert.equal(looks, 2)
})

test('an unavailable database ends no watch, and the next check is a second later', async () => {
  const clock = makeTestClock(new Date())
  let isAway = true
  const asSystem: ControlDeps['db']['asSystem'] = (fn) =>
    isAway ? Promise.reject(new Error('away')) : control.deps.db.asSystem(fn)
  const log = makeLog('silent')
  const deps = makeControlDeps({
    ...control.deps,
    clock,
    log,
    notifications: deaf,
    db: { ...control.deps.db, asSystem },
  })
  const caller = await makeCaller()
  const watch = deps.callerWatcher.watch(caller)
  await revokeApiKey(control.deps, control.caller, caller.api_key_id)
  await waitUntil(() => clock.sleepers === 1)
  assert.equal(watch.signal.aborted, false)
  isAway = false
  clock.advance(1_000)
  await waitUntil(() => endOf(watch) === 'api_key_revoked')
})
