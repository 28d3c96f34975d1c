import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import fc from 'fast-check'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import type { ControlDeps } from '../../../src/control/make-deps.ts'
import { startSandbox } from '../../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import type { SandboxId } from '../../../src/domain/ids.ts'
import type { Caller } from '../../../src/domain/orgs/caller.ts'
import { makeAddUpCountsLoop } from '../../../src/loops/add-up-counts.ts'
import * as orgCounts from '../../../src/store/orgs/org-counts.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addOrg } from '../../support/orgs.ts'
import { addLimitedOrg, createTestSandbox, openSecondProcess, refusalOf } from '../../support/quota-world.ts'

// The counters are compared with a count of the rows, by one statement and therefore in one snapshot, while everything changes.
// Fault schedules (test/fault) compare them after each step as well, with runs that fail, are lost and restart.

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

type Counts = { readonly sandboxes: number; readonly ephemeral_runs: number; readonly persistent_runs: number }

/** The counts of an organization by its counters, and by its rows. */
async function compare({ org_id }: Caller): Promise<Counts> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ readonly counted: Counts; readonly actual: Counts }>({
      text: `SELECT (SELECT to_json(c) FROM (${orgCounts.countsOf('$1')}) c) AS counted,
               json_build_object(
                 'sandboxes', (SELECT count(*) FROM sandboxes WHERE org_id = $1 AND visible_until IS NULL),
                 'ephemeral_runs', count(*) FILTER (WHERE is_ephemeral),
                 'persistent_runs', count(*) FILTER (WHERE NOT is_ephemeral)) AS actual
             FROM runs WHERE org_id = $1 AND ended_at IS NULL AND stop_requested_at IS NULL`,
      values: [org_id],
    }),
  )
  const [row] = rows
  assert.ok(row)
  assert.deepEqual(row.counted, row.actual)
  return row.counted
}

const KINDS = ['create', 'create', 'start', 'stop', 'delete', 'end', 'erase', 'roll back', 'kill', 'add up'] as const
type Act = {
  readonly kind: (typeof KINDS)[number]
  readonly start: boolean
  readonly ephemeral: boolean
  /** Selects the sandbox. */
  readonly which: number
  readonly isBeside: boolean
}
const acts: fc.Arbitrary<Act> = fc.record({
  kind: fc.constantFrom(...KINDS),
  start: fc.boolean(),
  ephemeral: fc.boolean(),
  which: fc.nat(20),
  isBeside: fc.boolean(),
})

/** Runs that end at once with the statement of the failing worker, without a stop: as one that was lost or failed. */
const END_RUN = `UPDATE runs SET ended_at = greatest(now(), opened_at, started_at) WHERE sandbox_id = $1 AND ended_at IS NULL`

async function perform(deps: ControlDeps, caller: Caller, act: Act, made: SandboxId[]): Promise<void> {
  if (act.kind === 'create') {
    const name = act.which < 5 ? { name: `name-${String(act.which)}` } : {}
    const work = createTestSandbox(deps, caller, { start: act.start, ephemeral: act.ephemeral, ...name })
    if ((await refusalOf(work)) === null) made.push((await work).id)
    return
  }
  if (act.kind === 'add up') return void (await makeAddUpCountsLoop(deps).run(never))
  const id = made[act.which % Math.max(1, made.length)]
  if (id === undefined) return
  // a transaction, which is tried again after a deadlock with another act
  const query = (text: string) => deps.db.transaction('system', (tx) => tx.query({ text, values: [id] }))
  switch (act.kind) {
    case 'start':
      return void (await refusalOf(startSandbox(deps, caller, { id }, { waitMs: null, signal: never })))
    case 'stop':
      return void (await refusalOf(stopSandbox(deps, caller, { id })))
    case 'delete':
      return void (await refusalOf(deleteSandbox(deps, caller, { id })))
    case 'end':
      return void (await query(END_RUN))
    case 'erase':
      await query('DELETE FROM runs WHERE sandbox_id = $1')
      return void (await query('DELETE FROM sandboxes WHERE id = $1'))
    case 'roll back':
    case 'kill':
      // Both are after a change of the counts; the second ends the process of PostgreSQL that serves the transaction.
      await assert.rejects(
        deps.db.transaction('system', async (tx) => {
          await tx.query({ text: 'DELETE FROM runs WHERE sandbox_id = $1', values: [id] })
          await tx.query({ text: `UPDATE sandboxes SET visible_until = now() WHERE id = $1`, values: [id] })
          await orgCounts.addDeltas(tx, 3)
          if (act.kind === 'kill') await tx.query({ text: 'SELECT pg_terminate_backend(pg_backend_pid())' })
          throw new Error('the transaction ends here')
        }),
      )
  }
}

test('counts are exact at any moment, whatever is created, ended, deleted, rolled back, killed or added up at once', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.boolean(),
      fc.array(fc.array(acts, { minLength: 1, maxLength: 12 }), { minLength: 1, maxLength: 4 }),
      async (isLimited, waves) => {
        const slug = `counts-${String(++orgs)}`
        const limits = { max_sandboxes: 6, max_concurrent_ephemeral_running: 3 }
        const caller = isLimited ? await addLimitedOrg(control.deps, slug, limits) : await addOrg(control.deps, slug)
        const made: SandboxId[] = []
        for (const wave of waves) {
          let isOver = false
          const watch = async (): Promise<void> => {
            while (!isOver) await compare(caller)
          }
          const acting = Promise.all(
            wave.map((act) => perform(act.isBeside ? beside.deps : control.deps, caller, act, made)),
          ).finally(() => (isOver = true))
          await Promise.all([watch(), acting])
          await compare(caller)
        }
      },
    ),
    { numRuns: 40 },
  )
})

test('creates of one organization do not wait for the counts of an open transaction', async () => {
  const caller = await addOrg(control.deps, 'hot')
  await control.deps.db.transaction(caller.org_id, async (tx) => {
    const { id } = await createTestSandbox(control.deps, caller, { start: false })
    await tx.query({ text: 'UPDATE sandboxes SET visible_until = now() WHERE id = $1', values: [id] })
    await Promise.all(Array.from({ length: 8 }, () => createTestSandbox(beside.deps, caller, { start: true })))
    await makeAddUpCountsLoop(beside.deps).run(never)
    assert.equal((await compare(caller)).sandboxes, 9)
  })
  assert.equal((await compare(caller)).sandboxes, 8)
})

test('concurrent passes add each change once', async () => {
  const caller = await addOrg(control.deps, 'passes')
  for (let n = 0; n < 30; n++) await createTestSandbox(control.deps, caller, { ephemeral: n % 2 === 0 })
  const passes = [control.deps, beside.deps, control.deps, beside.deps].map(async ({ db }) => {
    while ((await db.transaction('system', (tx) => orgCounts.addDeltas(tx, 7))) > 0) await compare(caller)
  })
  await Promise.all(passes)
  assert.deepEqual(await compare(caller), { sandboxes: 30, ephemeral_runs: 15, persistent_runs: 15 })
})
