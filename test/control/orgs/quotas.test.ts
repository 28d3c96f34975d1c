import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { changeOrgPlan, resumeOrg, suspendOrg } from '../../../src/control/orgs/orgs.ts'
import { setPlan } from '../../../src/control/orgs/plans.ts'
import { clearQuota, getQuotas, setQuota } from '../../../src/control/orgs/quotas.ts'
import { listEvents } from '../../../src/control/events/read-events.ts'
import { startSandbox } from '../../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import { moveSandbox } from '../../../src/control/sandboxes/transitions/transition.ts'
import { SYSTEM_ACTOR } from '../../../src/domain/orgs/caller.ts'
import { registerWorker } from '../../../src/control/workers/worker-join.ts'
import { OPERATOR_ACTOR, type Caller } from '../../../src/domain/orgs/caller.ts'
import type { RunId, SandboxId, WorkerId } from '../../../src/domain/ids.ts'
import type { SetLimits } from '../../../src/domain/orgs/plan.ts'
import { makeEnforceDeadlinesLoop } from '../../../src/loops/enforce-deadlines.ts'
import { startOfNextMonth } from '../../../src/domain/usage/metering.ts'
import { makeEnforceHardLimitsLoop } from '../../../src/loops/enforce-hard-limits.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addOrg } from '../../support/orgs.ts'
import {
  addLimitedOrg,
  createTestSandbox,
  setLimits,
  refusalOf,
  type SandboxOptions,
} from '../../support/quota-world.ts'
import { makeTestClock, type TestClock } from '../../support/test-clock.ts'

const never = new AbortController().signal
const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS
const DAY_MS = 24 * HOUR_MS

let clock: TestClock
let control: TestControl
let worker: WorkerId
before(async () => {
  clock = makeTestClock(new Date('2026-11-10T00:00:00Z'))
  control = await makeTestControl({ clock, leavesPlacementToLoop: true })
  worker = await registerWorker(control.deps, { name: 'w1', credential: 'a credential of a test' })
  const driver = { name: 'test', isolation: 'none', abilities: ['disk_size'], images: [] }
  await control.deps.db.asSystem((q) =>
    q.query({
      text: `UPDATE workers SET driver = $2, vcpus = 1000, memory_mib = 1000000, lease_expires_at = 'infinity' WHERE id = $1`,
      values: [worker, JSON.stringify(driver)],
    }),
  )
})
after(() => control.close())

const operatorOf = ({ org_id }: Caller) => ({ org_id, actor: OPERATOR_ACTOR })

function start(caller: Caller, id: SandboxId): Promise<unknown> {
  return startSandbox(control.deps, caller, { id }, { waitMs: null, signal: never })
}

type RunRow = {
  readonly id: RunId
  readonly status: string
  readonly stop_cause: string | null
  readonly disk_mib: number
  readonly is_ephemeral: boolean
}

/** The latest run of a sandbox, with the sandbox's status. */
async function runOf(id: SandboxId): Promise<RunRow> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<RunRow>({
      text: `SELECT r.id, s.status, r.stop_cause, r.disk_mib, r.is_ephemeral FROM runs r JOIN sandboxes s ON s.id = r.sandbox_id
             WHERE s.id = $1 ORDER BY r.opened_at DESC, r.id DESC LIMIT 1`,
      values: [id],
    }),
  )
  const [row] = rows
  assert.ok(row)
  return row
}

/** Moves a starting sandbox to `running`, as its worker's report would. */
async function run(id: SandboxId, facts: Readonly<Record<string, string>> = {}): Promise<void> {
  const { id: run_id } = await runOf(id)
  const cause = { actor: SYSTEM_ACTOR, code: 'placement' } as const
  await moveSandbox(control.deps, {
    sandbox_id: id,
    run_id,
    event: 'placed',
    cause,
    worker: { id: worker, name: 'w1' },
  })
  await moveSandbox(control.deps, { sandbox_id: id, run_id, event: 'worker_running', cause, facts })
}

/** Moves a stopping sandbox to `stopped`, as its worker's report would. */
async function settle(id: SandboxId): Promise<void> {
  const { id: run_id } = await runOf(id)
  const cause = { actor: SYSTEM_ACTOR, code: 'worker_report' } as const
  await moveSandbox(control.deps, { sandbox_id: id, run_id, event: 'worker_stopped', cause })
}

async function eventsOf(caller: Caller, event_type: string): Promise<readonly unknown[]> {
  const input = { event_type, since: null, until: null, cursor: null, limit: 100 }
  return (await listEvents(control.deps, caller, input)).items.map(({ payload }) => payload)
}

const change = (name: string, slug: string): string =>
  `the operator can change it: sandyard quota set ${name} VALUE --org ${slug}`

type Case = {
  readonly limits: SetLimits
  readonly fits: SandboxOptions
  readonly exceeds: SandboxOptions
  readonly details: object
}
const CASES: Readonly<Record<string, Case>> = {
  max_sandboxes: {
    limits: { max_sandboxes: 1 },
    fits: { start: false },
    exceeds: { start: false },
    details: { max: 1, current: 1, requested: 1 },
  },
  max_concurrent_ephemeral_running: {
    limits: { max_concurrent_ephemeral_running: 1 },
    fits: { ephemeral: true },
    exceeds: { ephemeral: true },
    details: { max: 1, current: 1, requested: 1 },
  },
  max_concurrent_persistent_running: {
    limits: { max_concurrent_persistent_running: 1, max_concurrent_ephemeral_running: 0 },
    fits: {},
    exceeds: {},
    details: { max: 1, current: 1, requested: 1 },
  },
  max_vcpus_per_sandbox: {
    limits: { max_vcpus_per_sandbox: 2 },
    fits: { vcpus: 2, start: false },
    exceeds: { vcpus: 3, start: false },
    details: { max: 2, current: null, requested: 3 },
  },
  max_memory_mib_per_sandbox: {
    limits: { max_memory_mib_per_sandbox: 512 },
    fits: { memory_mib: 512 },
    exceeds: { memory_mib: 513 },
    details: { max: 512, current: null, requested: 513 },
  },
  max_disk_size_mib_per_sandbox: {
    limits: { max_disk_size_mib_per_sandbox: 1024 },
    fits: { disk_size_mib: 1024 },
    exceeds: { disk_size_mib: 1025 },
    details: { max: 1024, current: null, requested: 1025 },
  },
  max_uptime_minutes_per_sandbox: {
    limits: { max_uptime_minutes_per_sandbox: 2 },
    fits: { max_duration_secs: 120 },
    exceeds: { max_duration_secs: 150 },
    details: { max: 2, current: null, requested: 2.5 },
  },
}

for (const [name, { limits, fits, exceeds, details }] of Object.entries(CASES))
  test(`requests within ${name} are admitted, and the next one is refused with the limit, the current use and how to change it`, async () => {
    const slug = name.replaceAll('_', '-')
    const caller = await addLimitedOrg(control.deps, slug, limits)
    await createTestSandbox(control.deps, caller, fits)
    const refusal = await refusalOf(createTestSandbox(control.deps, caller, exceeds))
    assert.equal(refusal?.code, 'quota_exceeded')
    assert.deepEqual(refusal.details, { limit: name, ...details, how_to_change: change(name, slug) })
    for (const said of [name, String(Object.values(limits)[0]), change(name, slug)])
      assert.ok(refusal.message.includes(said), refusal.message)
  })

test('a refused start names the limit, and succeeds after another sandbox stops', async () => {
  const caller = await addLimitedOrg(control.deps, 'one-runs', { max_concurrent_persistent_running: 1 })
  const [first, second] = [
    await createTestSandbox(control.deps, caller),
    await createTestSandbox(control.deps, caller, { start: false }),
  ]
  const refusal = await refusalOf(start(caller, second.id))
  assert.equal(refusal?.code, 'quota_exceeded')
  assert.equal(refusal.details?.['limit'], 'max_concurrent_persistent_running')
  await stopSandbox(control.deps, caller, { id: first.id })
  await start(caller, second.id)
  assert.equal((await runOf(second.id)).status, 'starting')
})

test('a sandbox that became too large for a lowered limit does not start again', async () => {
  const caller = await addOrg(control.deps, 'lowered')
  const { id } = await createTestSandbox(control.deps, caller, { vcpus: 4, start: false })
  await setLimits(control.deps, caller, { max_vcpus_per_sandbox: 2 })
  const refusal = await refusalOf(start(caller, id))
  assert.equal(refusal?.details?.['limit'], 'max_vcpus_per_sandbox')
})

test("an override replaces the plan's limit, null means unlimited, and without the override the plan's limit applies again", async () => {
  const { deps } = control
  const caller = await addOrg(deps, 'overridden')
  await setPlan(deps, 'small', { limits: { max_sandboxes: 0, max_vcpus_per_sandbox: 1 } })
  await changeOrgPlan(deps, operatorOf(caller), 'small')
  assert.equal((await refusalOf(createTestSandbox(deps, caller)))?.details?.['max'], 0)
  await setQuota(deps, operatorOf(caller), { limit: 'max_sandboxes', value: null })
  await createTestSandbox(deps, caller)
  const { max_sandboxes, max_vcpus_per_sandbox, total_sandboxes } = await getQuotas(deps, caller)
  assert.deepEqual([max_sandboxes, max_vcpus_per_sandbox, total_sandboxes], [null, 1, 1])
  await clearQuota(deps, operatorOf(caller), 'max_sandboxes')
  assert.equal((await refusalOf(createTestSandbox(deps, caller)))?.details?.['max'], 0)
  const plain = await addOrg(deps, 'unlimited-org')
  await Promise.all(Array.from({ length: 20 }, () => createTestSandbox(deps, plain)))
})

test('every change of plan, limits and suspension records one event, and repeating the change records none', async () => {
  const { deps } = control
  const caller = await addOrg(deps, 'told')
  const acting = operatorOf(caller)
  for (let time = 0; time < 2; time++) {
    await setPlan(deps, 'told-plan', { limits: { max_sandboxes: 5 }, prices: null })
    await changeOrgPlan(deps, acting, 'told-plan')
  }
  for (let time = 0; time < 2; time++) {
    await setPlan(deps, 'told-plan', { limits: { max_sandboxes: 6 }, prices: { vcpu_hour_microcents: 7 } })
    await setQuota(deps, acting, { limit: 'max_sandboxes', value: 3 })
    await suspendOrg(deps, acting, 'unpaid')
  }
  for (let time = 0; time < 2; time++) await resumeOrg(deps, acting)
  for (let time = 0; time < 2; time++) await clearQuota(deps, acting, 'max_sandboxes')
  assert.deepEqual(await eventsOf(caller, 'org_plan_changed'), [{ plan: 'told-plan', from: 'unlimited' }])
  assert.deepEqual(await eventsOf(caller, 'plan_changed'), [
    {
      plan: 'told-plan',
      limits: { max_sandboxes: 6 },
      prices: { vcpu_hour_microcents: 7 },
      from: { limits: { max_sandboxes: 5 }, prices: null },
    },
  ])
  assert.deepEqual(await eventsOf(caller, 'quota_changed'), [
    { overrides: {}, from: { max_sandboxes: 3 } },
    { overrides: { max_sandboxes: 3 }, from: {} },
  ])
  assert.deepEqual(await eventsOf(caller, 'org_suspended'), [{ reason: 'unpaid' }])
  assert.deepEqual(await eventsOf(caller, 'org_resumed'), [{}])
})

test('while an organization is suspended its runs are stopped and starts are refused, and once it is resumed starts succeed', async () => {
  const { deps } = control
  const caller = await addOrg(deps, 'suspended')
  const [running, waiting] = [await createTestSandbox(deps, caller), await createTestSandbox(deps, caller)]
  await run(running.id)
  await suspendOrg(deps, operatorOf(caller), null)
  const refusal = await refusalOf(createTestSandbox(deps, caller))
  assert.equal(refusal?.code, 'org_suspended')
  const how_to_change = 'the operator can end the suspension: sandyard org resume suspended'
  assert.deepEqual(refusal.details, { limit: 'is_suspended', max: 0, current: null, requested: 1, how_to_change })
  await createTestSandbox(deps, caller, { start: false })
  await makeEnforceHardLimitsLoop(deps).run(never)
  assert.deepEqual([(await runOf(running.id)).status, (await runOf(waiting.id)).status], ['stopping', 'stopped'])
  assert.equal((await runOf(running.id)).stop_cause, 'suspended')
  await settle(running.id)
  assert.equal((await refusalOf(start(caller, running.id)))?.code, 'org_suspended')
  assert.equal((await getQuotas(deps, caller)).is_suspended, true)
  await resumeOrg(deps, operatorOf(caller))
  await start(caller, running.id)
  assert.equal((await runOf(running.id)).status, 'starting')
})

test('used up included hours of a plan without prices stop runs, refuse starts until the month ends, and record one event', async () => {
  const { deps } = control
  const caller = await addLimitedOrg(deps, 'pooled', { included_vcpu_hours: 2 })
  const { id } = await createTestSandbox(deps, caller, { vcpus: 4 })
  await run(id)
  clock.advance(29 * MINUTE_MS)
  const dueMs = await makeEnforceHardLimitsLoop(deps).run(never)
  assert.equal((await runOf(id)).status, 'running')
  assert.equal(dueMs, MINUTE_MS, 'the loop knows when the pool will be used up')
  await createTestSandbox(deps, caller, { start: false })
  clock.advance(MINUTE_MS)
  for (let pass = 0; pass < 3; pass++) await makeEnforceHardLimitsLoop(deps).run(never)
  const { status, stop_cause } = await runOf(id)
  assert.deepEqual([status, stop_cause], ['stopping', 'pool_exhausted'])
  await settle(id)
  const refusal = await refusalOf(start(caller, id))
  const how_to_change = change('included_vcpu_hours', 'pooled')
  assert.deepEqual(refusal?.details, {
    limit: 'included_vcpu_hours',
    max: 2,
    current: 2,
    requested: null,
    how_to_change,
  })
  const { pool_exhausted, vcpu_hours_used, hard_cap } = await getQuotas(deps, caller)
  assert.deepEqual(
    { pool_exhausted, vcpu_hours_used, hard_cap },
    { pool_exhausted: true, vcpu_hours_used: 2, hard_cap: true },
  )
  assert.deepEqual(await eventsOf(caller, 'pool_exhausted'), [
    { pool: 'included_vcpu_hours', included_hours: 2, used_hours: 2 },
  ])
  clock.advance(21 * DAY_MS) // December
  await start(caller, id)
  assert.equal((await getQuotas(deps, caller)).pool_exhausted, false)
  await run(id)
  clock.advance(HOUR_MS)
  await makeEnforceHardLimitsLoop(deps).run(never)
  assert.equal((await eventsOf(caller, 'pool_exhausted')).length, 2)
})

test('a pass that a new month overtakes stops no run for the hours of the month before, and records no event', async () => {
  const { deps } = control
  const caller = await addLimitedOrg(deps, 'overtaken', { included_vcpu_hours: 1 })
  const leftMs = startOfNextMonth(clock.now()).getTime() - clock.now().getTime()
  clock.advance(leftMs - HOUR_MS / 2)
  const { id } = await createTestSandbox(deps, caller, { vcpus: 4 })
  await run(id)
  clock.advance(HOUR_MS / 2 - 1)
  let isOvertaken = false
  const now = (): Date => {
    const at = clock.now()
    if (!isOvertaken) clock.advance(1)
    isOvertaken = true
    return at
  }
  await makeEnforceHardLimitsLoop({ ...deps, clock: { ...clock, now } }).run(never)
  await makeEnforceHardLimitsLoop(deps).run(never)
  assert.equal((await runOf(id)).status, 'running')
  assert.deepEqual(await eventsOf(caller, 'pool_exhausted'), [])
  clock.advance(HOUR_MS / 2)
  await makeEnforceHardLimitsLoop(deps).run(never)
  assert.equal((await runOf(id)).stop_cause, 'pool_exhausted')
  assert.equal((await eventsOf(caller, 'pool_exhausted')).length, 1)
})

test('used up memory hours alone reach the hard limit, and 0 included hours allow no start', async () => {
  const { deps } = control
  const caller = await addLimitedOrg(deps, 'memory-pooled', { included_memory_gib_hours: 1 })
  const { id } = await createTestSandbox(deps, caller, { memory_mib: 2048 })
  await run(id)
  clock.advance(HOUR_MS / 2)
  assert.equal((await refusalOf(createTestSandbox(deps, caller)))?.details?.['limit'], 'included_memory_gib_hours')
  const none = await addLimitedOrg(deps, 'nothing-included', { included_vcpu_hours: 0 })
  assert.equal((await refusalOf(createTestSandbox(deps, none)))?.details?.['limit'], 'included_vcpu_hours')
})

test('on a plan with prices, used up included hours are no hard limit', async () => {
  const { deps } = control
  const caller = await addOrg(deps, 'priced')
  await setPlan(deps, 'priced-plan', { limits: { included_vcpu_hours: 1 }, prices: { vcpu_hour_microcents: 1 } })
  await changeOrgPlan(deps, operatorOf(caller), 'priced-plan')
  const { id } = await createTestSandbox(deps, caller)
  await run(id)
  clock.advance(2 * HOUR_MS)
  await makeEnforceHardLimitsLoop(deps).run(never)
  assert.equal((await runOf(id)).status, 'running')
  await createTestSandbox(deps, caller)
})

test('a run is stopped at the uptime limit or at its own maximum duration, whichever comes first, with that cause', async () => {
  const { deps } = control
  const caller = await addLimitedOrg(deps, 'uptime', { max_uptime_minutes_per_sandbox: 10 })
  const [long, short] = [
    await createTestSandbox(deps, caller),
    await createTestSandbox(deps, caller, { max_duration_secs: 300 }),
  ]
  await run(long.id)
  await run(short.id)
  clock.advance(5 * MINUTE_MS)
  await makeEnforceDeadlinesLoop(deps).run(never)
  assert.deepEqual([(await runOf(long.id)).stop_cause, (await runOf(short.id)).stop_cause], [null, 'max_duration'])
  clock.advance(5 * MINUTE_MS)
  await makeEnforceDeadlinesLoop(deps).run(never)
  assert.equal((await runOf(long.id)).stop_cause, 'max_uptime')
})

test('a run records whether it is ephemeral, and its requested disk size or else the one that the worker chose', async () => {
  const { deps, caller } = control
  const plain = await createTestSandbox(deps, caller, { ephemeral: true })
  await run(plain.id, { disk_size_mib: '4096' })
  const { disk_mib, is_ephemeral } = await runOf(plain.id)
  assert.deepEqual({ disk_mib, is_ephemeral }, { disk_mib: 4096, is_ephemeral: true })
  const sized = await createTestSandbox(deps, caller, { disk_size_mib: 512, start: false })
  await start(caller, sized.id)
  await run(sized.id, { disk_size_mib: '512' })
  assert.deepEqual([(await runOf(sized.id)).disk_mib, (await runOf(sized.id)).is_ephemeral], [512, false])
})

test("a storage limit that a worker can't enforce is refused with the reason", async () => {
  const { deps } = control
  const caller = await addOrg(deps, 'stored')
  const storage = { is_shared: false, enforces_caps: false, how: 'its file system has no quotas' }
  const say = (what: object | null) =>
    deps.db.asSystem((q) =>
      q.query({
        text: 'UPDATE workers SET storage = $2 WHERE id = $1',
        values: [worker, what === null ? null : JSON.stringify(what)],
      }),
    )
  await say(storage)
  const refusal = await refusalOf(setLimits(deps, caller, { max_total_storage_gib: 1 }))
  await say({ ...storage, enforces_caps: true })
  assert.equal(refusal?.code, 'invalid_request')
  assert.match(refusal.message, /w1.*its file system has no quotas/)
  await setLimits(deps, caller, { max_total_storage_gib: 1 })
  assert.equal((await getQuotas(deps, caller)).max_total_storage_gib, 1)
  await say(null)
})
