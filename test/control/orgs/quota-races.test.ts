import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import fc from 'fast-check'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import type { ControlDeps } from '../../../src/control/make-deps.ts'
import { getQuotas } from '../../../src/control/orgs/quotas.ts'
import { startSandbox } from '../../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import type { Caller } from '../../../src/domain/orgs/caller.ts'
import type { Sandbox } from '../../../src/domain/sandboxes/sandbox.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addLimitedOrg, openSecondProcess, createTestSandbox, refusalOf } from '../../support/quota-world.ts'

let control: TestControl
let beside: Awaited<ReturnType<typeof openSecondProcess>>
before(async () => {
  control = await makeTestControl()
  beside = await openSecondProcess(control)
})
after(async () => {
  await beside[Symbol.asyncDispose]()
  await control.close()
})

const never = new AbortController().signal
let orgs = 0

type Limits = {
  readonly max_sandboxes: number
  readonly max_concurrent_ephemeral_running: number
  readonly max_concurrent_persistent_running: number
}

/** An organization's use of each limit, counted from the rows by a query of this test. */
async function inUse(caller: Caller): Promise<Limits> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<Limits>({
      text: `SELECT count(*) AS max_sandboxes,
               count(*) FILTER (WHERE ephemeral AND status IN ('starting', 'running')) AS max_concurrent_ephemeral_running,
               count(*) FILTER (WHERE NOT ephemeral AND status IN ('starting', 'running')) AS max_concurrent_persistent_running
             FROM sandboxes WHERE org_id = $1 AND visible_until IS NULL`,
      values: [caller.org_id],
    }),
  )
  const [row] = rows
  assert.ok(row)
  return row
}

function assertWithin(use: Limits, limits: Limits): void {
  assert.ok(use.max_sandboxes <= limits.max_sandboxes, JSON.stringify({ use, limits }))
  assert.ok(
    use.max_concurrent_ephemeral_running <= limits.max_concurrent_ephemeral_running,
    JSON.stringify({ use, limits }),
  )
  assert.ok(
    use.max_concurrent_persistent_running <= limits.max_concurrent_persistent_running,
    JSON.stringify({ use, limits }),
  )
}

const someLimits: fc.Arbitrary<Limits> = fc.record({
  max_sandboxes: fc.integer({ min: 1, max: 8 }),
  max_concurrent_ephemeral_running: fc.integer({ min: 0, max: 5 }),
  max_concurrent_persistent_running: fc.integer({ min: 0, max: 5 }),
})

type Act = {
  readonly what: 'create' | 'start' | 'stop' | 'delete'
  readonly start: boolean
  readonly ephemeral: boolean
  /** Selects the sandbox, and the process that acts. */
  readonly which: number
  readonly isBeside: boolean
}
const anAct: fc.Arbitrary<Act> = fc.record({
  what: fc.constantFrom('create', 'create', 'create', 'start', 'start', 'stop', 'delete'),
  start: fc.boolean(),
  ephemeral: fc.boolean(),
  which: fc.nat(30),
  isBeside: fc.boolean(),
})

async function perform(deps: ControlDeps, caller: Caller, act: Act, made: Sandbox[]): Promise<void> {
  if (act.what === 'create') {
    const { start, ephemeral } = act
    const work = createTestSandbox(deps, caller, {
      start,
      ephemeral,
      ...(act.which < 4 ? { name: `name-${String(act.which)}` } : {}),
    })
    if ((await refusalOf(work)) === null) made.push(await work)
    return
  }
  const sandbox = made[act.which % Math.max(1, made.length)]
  if (sandbox === undefined) return
  const ref = { id: sandbox.id }
  if (act.what === 'start') await refusalOf(startSandbox(deps, caller, ref, { waitMs: null, signal: never }))
  if (act.what === 'stop') await refusalOf(stopSandbox(deps, caller, ref))
  if (act.what === 'delete') await refusalOf(deleteSandbox(deps, caller, ref))
}

test('creates, starts, stops and deletes from two processes at once never exceed a limit', async () => {
  await fc.assert(
    fc.asyncProperty(
      someLimits,
      fc.array(fc.array(anAct, { minLength: 1, maxLength: 12 }), { minLength: 1, maxLength: 4 }),
      async (limits, waves) => {
        const caller = await addLimitedOrg(control.deps, `races-${String(++orgs)}`, limits)
        const made: Sandbox[] = []
        for (const wave of waves) {
          let isOver = false
          const watch = async (): Promise<void> => {
            while (!isOver) assertWithin(await inUse(caller), limits)
          }
          const acting = Promise.all(
            wave.map((act) => perform(act.isBeside ? beside.deps : control.deps, caller, act, made)),
          )
          await Promise.all([watch(), acting.finally(() => (isOver = true))])
          assertWithin(await inUse(caller), limits)
        }
        const { total_sandboxes, concurrent_ephemeral_running, concurrent_persistent_running } = await getQuotas(
          control.deps,
          caller,
        )
        assert.deepEqual(await inUse(caller), {
          max_sandboxes: total_sandboxes,
          max_concurrent_ephemeral_running: concurrent_ephemeral_running,
          max_concurrent_persistent_running: concurrent_persistent_running,
        })
      },
    ),
    { numRuns: 25 },
  )
})

test('of many creates at once from two processes, exactly as many succeed as the limit allows', async () => {
  await fc.assert(
    fc.asyncProperty(someLimits, fc.boolean(), async (limits, ephemeral) => {
      const caller = await addLimitedOrg(control.deps, `reach-${String(++orgs)}`, limits)
      const creates = Array.from({ length: 24 }, (_, index) =>
        refusalOf(createTestSandbox(index % 2 === 0 ? control.deps : beside.deps, caller, { ephemeral })),
      )
      const refusals = await Promise.all(creates)
      const running = ephemeral ? limits.max_concurrent_ephemeral_running : limits.max_concurrent_persistent_running
      assert.equal(refusals.filter((refusal) => refusal === null).length, Math.min(limits.max_sandboxes, running))
      assert.ok(refusals.every((refusal) => refusal === null || refusal.code === 'quota_exceeded'))
    }),
    { numRuns: 15 },
  )
})

test('of many starts at once from two processes, exactly as many succeed as the limit allows', async () => {
  const limits = { max_concurrent_persistent_running: 3 }
  const caller = await addLimitedOrg(control.deps, 'starts', limits)
  const made = await Promise.all(
    Array.from({ length: 12 }, () => createTestSandbox(control.deps, caller, { start: false })),
  )
  const starts = made.flatMap(({ id }) =>
    [control.deps, beside.deps].map((deps) =>
      refusalOf(startSandbox(deps, caller, { id }, { waitMs: null, signal: never })),
    ),
  )
  await Promise.all(starts)
  assert.equal((await inUse(caller)).max_concurrent_persistent_running, 3)
})

test('a create whose name is taken uses no quota of another create in its batch', async () => {
  const caller = await addLimitedOrg(control.deps, 'names', { max_sandboxes: 2 })
  await createTestSandbox(control.deps, caller, { name: 'taken', start: false })
  const refusals = await Promise.all([
    refusalOf(createTestSandbox(control.deps, caller, { name: 'taken', start: false })),
    refusalOf(createTestSandbox(control.deps, caller, { name: 'free', start: false })),
  ])
  assert.deepEqual(
    refusals.map((refusal) => refusal?.code ?? null),
    ['name_already_exists', null],
  )
})
