import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import fc from 'fast-check'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import { getSandbox } from '../../../src/control/sandboxes/read-sandboxes.ts'
import { startSandbox } from '../../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import { moveSandbox } from '../../../src/control/sandboxes/transitions/transition.ts'
import { SYSTEM_ACTOR } from '../../../src/domain/orgs/caller.ts'
import { recordReport } from '../../../src/control/workers/record-report.ts'
import { registerWorker } from '../../../src/control/workers/worker-join.ts'
import type { ObservedRun } from '../../../src/contract/workers/worker-protocol.ts'
import { asId, type RunId, type SandboxId, type WorkerId } from '../../../src/domain/ids.ts'
import { isTerminal, SANDBOX_STATUSES } from '../../../src/domain/sandboxes/lifecycle.ts'
import { Problem } from '../../../src/domain/problem.ts'
import type { RunOutcome } from '../../../src/domain/sandboxes/run.ts'
import { makeDetectLostWorkersLoop } from '../../../src/loops/detect-lost-workers.ts'
import { makePlacePendingLoop } from '../../../src/loops/place-pending.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../support/spec.ts'
import { reportOf } from '../../support/report.ts'

let control: TestControl
let worker: WorkerId
before(async () => {
  control = await makeTestControl()
  worker = await registerWorker(control.deps, { name: 'w1', credential: 'a credential of a test' })
  await sync([])
})
after(() => control.close())

const never = new AbortController().signal

async function create(start: boolean, ephemeral = false): Promise<SandboxId> {
  const { lifecycle } = DEFAULT_SPEC_FOR_TESTS
  const spec = {
    ...DEFAULT_SPEC_FOR_TESTS,
    network: { ...DEFAULT_SPEC_FOR_TESTS.network, enabled: true },
    lifecycle: { ...lifecycle, ephemeral },
  }
  const input = {
    spec,
    name: null,
    slug: null,
    registry: { mode: 'auto' },
    start,
    waitMs: null,
    signal: never,
  } as const
  return (await createSandbox(control.deps, control.caller, input)).id
}

let reports = 0

async function sync(seen: readonly ObservedRun[]): Promise<void> {
  const capacity = { vcpus: 1_000_000, memory_mib: 1_000_000_000, disk_mib: 1_000_000 }
  await recordReport(control.deps, reportOf(worker, { seq: ++reports, capacity, observed_runs: seen }))
}

async function runsOf(
  id: SandboxId,
): Promise<readonly { readonly id: RunId; readonly ended_at: Date | null; readonly worker_id: string | null }[]> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ readonly id: RunId; readonly ended_at: Date | null; readonly worker_id: string | null }>({
      text: 'SELECT id, ended_at, worker_id FROM runs WHERE sandbox_id = $1 ORDER BY opened_at, id',
      values: [id],
    }),
  )
  return rows
}

async function rowOf(id: SandboxId): Promise<{ readonly status: string; readonly visible_until: Date | null }> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<{ readonly status: string; readonly visible_until: Date | null }>({
      text: 'SELECT status, visible_until FROM sandboxes WHERE id = $1',
      values: [id],
    }),
  )
  const [row] = rows
  assert.ok(row)
  return row
}

const OUTCOMES: readonly RunOutcome[] = [
  { kind: 'exited', code: 0 },
  { kind: 'exited', code: 3 },
  { kind: 'signalled', signal: 'SIGKILL' },
  { kind: 'out_of_memory' },
  { kind: 'stopped' },
  { kind: 'start_failed', reason: 'image', message: 'no such image' },
]

type Step =
  | { readonly kind: 'start' | 'stop' | 'delete' | 'place' | 'lose' | 'forget' }
  | { readonly kind: 'running'; readonly stale: boolean }
  | { readonly kind: 'ended'; readonly stale: boolean; readonly outcome: RunOutcome }

const aStep: fc.Arbitrary<Step> = fc.oneof(
  fc.constantFrom('start', 'stop', 'delete', 'place', 'place', 'lose', 'forget').map((kind): Step => ({ kind })),
  fc.boolean().map((stale): Step => ({ kind: 'running', stale })),
  fc
    .record({ stale: fc.boolean(), outcome: fc.constantFrom(...OUTCOMES) })
    .map((ended): Step => ({ kind: 'ended', ...ended })),
)

/** Waits for work that may be refused. Rejects if it fails with any other error, which is a bug. */
async function refusable(work: Promise<unknown>): Promise<void> {
  try {
    await work
  } catch (error) {
    if (!(error instanceof Problem)) throw error
  }
}

async function perform(id: SandboxId, step: Step): Promise<void> {
  const { deps, caller } = control
  const runs = await runsOf(id)
  const open = runs.find((run) => run.ended_at === null)
  switch (step.kind) {
    case 'start':
      return refusable(startSandbox(deps, caller, { id }, { waitMs: null, signal: never }))
    case 'stop':
      return refusable(stopSandbox(deps, caller, { id }))
    case 'delete':
      return refusable(deleteSandbox(deps, caller, { id }))
    case 'place':
      await makePlacePendingLoop(deps).run(never)
      return
    case 'lose':
      if (open === undefined || open.worker_id === null) return
      await moveSandbox(deps, {
        sandbox_id: id,
        run_id: open.id,
        event: 'worker_lost',
        cause: { actor: SYSTEM_ACTOR, code: 'worker_lost', message: 'worker lost' },
      })
      return
    case 'forget':
      return sync([])
    default: {
      const stale = runs.find((run) => run.ended_at !== null)?.id ?? asId<RunId>('00000000-0000-7000-8000-000000000000')
      const run_id = step.stale ? stale : open?.id
      if (run_id === undefined) return
      await sync([
        step.kind === 'running'
          ? { run_id, sandbox_id: id, phase: 'running' }
          : { run_id, sandbox_id: id, phase: 'ended', outcome: step.outcome },
      ])
    }
  }
}

test('whatever happens in whatever order, a sandbox has at most one open run, a known status, and comes to an end', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.boolean(),
      fc.boolean(),
      fc.array(aStep, { maxLength: 14 }),
      async (start, ephemeral, steps) => {
        const id = await create(start, ephemeral)
        for (const step of steps) {
          await perform(id, step)
          const [row, runs] = [await rowOf(id), await runsOf(id)]
          const open = runs.filter((run) => run.ended_at === null)
          assert.ok(open.length <= 1, 'two open runs')
          assert.ok(SANDBOX_STATUSES.some((status) => status === row.status))
          assert.equal(
            open.length === 1,
            ['starting', 'running', 'stopping'].includes(row.status),
            `${row.status} with ${String(open.length)} open runs`,
          )
        }
        await perform(id, { kind: 'place' })
        await perform(id, { kind: 'delete' })
        await perform(id, { kind: 'ended', stale: false, outcome: { kind: 'stopped' } })
        const row = await rowOf(id)
        assert.ok(row.status === 'created' || row.status === 'stopped' || row.status === 'failed', row.status)
        assert.ok(row.visible_until !== null)
        await assert.rejects(getSandbox(control.deps, control.caller, { id }), { code: 'sandbox_not_found' })
      },
    ),
    { numRuns: 60 },
  )
})

test('a sandbox whose start finds no capacity shows that it waits, and is placed once a worker has the capacity', async () => {
  await control.deps.db.asSystem((q) => q.query({ text: 'UPDATE workers SET vcpus = 0' }))
  const id = await create(true)
  await makePlacePendingLoop(control.deps).run(never)
  assert.equal((await getSandbox(control.deps, control.caller, { id })).status_reason, 'insufficient_capacity')
  await sync([])
  await makePlacePendingLoop(control.deps).run(never)
  const placed = await getSandbox(control.deps, control.caller, { id })
  assert.equal(placed.status, 'starting')
  assert.equal(placed.status_reason, null)
})

test('an ended ephemeral sandbox stays visible for a short time with its last status, and its name is free at once', async () => {
  const id = await create(true, true)
  await makePlacePendingLoop(control.deps).run(never)
  const [run] = await runsOf(id)
  assert.ok(run)
  await sync([{ run_id: run.id, sandbox_id: id, phase: 'running' }])
  await sync([{ run_id: run.id, sandbox_id: id, phase: 'ended', outcome: { kind: 'exited', code: 4 } }])
  const ended = await getSandbox(control.deps, control.caller, { id })
  assert.equal(ended.status, 'failed')
  assert.equal(ended.last_failure_message, 'the workload exited with code 4')
  assert.ok(isTerminal(ended.status))
  const input = {
    spec: DEFAULT_SPEC_FOR_TESTS,
    name: ended.name,
    slug: ended.slug,
    registry: { mode: 'auto' },
    start: false,
    waitMs: null,
    signal: never,
  } as const
  const again = await createSandbox(control.deps, control.caller, {
    ...input,
    spec: { ...input.spec, network: { ...input.spec.network, enabled: true } },
  })
  assert.equal((await getSandbox(control.deps, control.caller, { name: ended.name })).id, again.id)
})

test('no worker is marked lost before the control plane has listened for one lease', async () => {
  const id = await create(true)
  await makePlacePendingLoop(control.deps).run(never)
  await control.deps.db.asSystem((q) => q.query({ text: `UPDATE workers SET lease_expires_at = '2000-01-01'` }))
  let ms = 0
  const deps = { ...control.deps, clock: { ...control.deps.clock, monotonicMs: () => ms } }
  const loop = makeDetectLostWorkersLoop(deps)
  await loop.run(never)
  assert.equal((await getSandbox(control.deps, control.caller, { id })).status, 'starting')
  ms = 31_000
  await loop.run(never)
  const lost = await getSandbox(control.deps, control.caller, { id })
  assert.equal(lost.status, 'failed')
  assert.match(lost.last_failure_message ?? '', /worker lost/)
})
