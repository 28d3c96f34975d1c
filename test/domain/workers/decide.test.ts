import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { decide, type HeldRun, type DesiredRunState, type WorkerAction } from '../../../src/domain/workers/decide.ts'
import { asId, type RunId, type SandboxId } from '../../../src/domain/ids.ts'

const PHASES = ['starting', 'running', 'stopping', 'ended'] as const
const run = (n: number): RunId => asId<RunId>(`run-${String(n)}`)
/** The sandbox of run `n`. Runs 0 and 1, 2 and 3, … share a sandbox, so that one run must wait for the other. */
const sandbox = (n: number): SandboxId => asId<SandboxId>(`sandbox-${String(n >> 1)}`)

const someHeld = fc
  .uniqueArray(fc.nat({ max: 9 }))
  .chain((ids) =>
    fc.tuple(
      ...ids.map((n) =>
        fc.constantFrom(...PHASES).map((phase): HeldRun => ({ run_id: run(n), sandbox_id: sandbox(n), phase })),
      ),
    ),
  )
const someWanted = fc.uniqueArray(fc.nat({ max: 9 }), { selector: (n) => n >> 1 }).chain((ids) =>
  fc.tuple(
    ...ids.map((n) =>
      fc.constantFrom('running' as const, 'stopped' as const).map((desired): DesiredRunState => ({
        run_id: run(n),
        sandbox_id: sandbox(n),
        desired_status: desired,
        grace_ms: 5,
      })),
    ),
  ),
)

const NONE: ReadonlySet<RunId> = new Set()

test('a worker never touches a run that is as desired or that a later answer brings, and never starts one that is not desired', () => {
  fc.assert(
    fc.property(someWanted, someHeld, fc.uniqueArray(fc.nat({ max: 9 })), (wanted, held, some) => {
      const later = new Set(some.map(run))
      for (const action of decide(wanted, held, later)) {
        const want = wanted.find((one) => one.run_id === action.run_id)
        const have = held.find((one) => one.run_id === action.run_id)
        if (action.kind === 'start') assert.ok(want?.desired_status === 'running' && have === undefined)
        if (action.kind === 'stop')
          assert.ok(want?.desired_status === 'stopped' && have !== undefined && have.phase !== 'ended')
        if (action.kind === 'remove') assert.ok(want === undefined && have !== undefined && !later.has(action.run_id))
      }
    }),
  )
})

test('two runs of one sandbox never run at once', () => {
  fc.assert(
    fc.property(someWanted, someHeld, (wanted, held) => {
      for (const action of decide(wanted, held, NONE)) {
        if (action.kind !== 'start') continue
        const want = wanted.find((one) => one.run_id === action.run_id)
        assert.ok(!held.some((one) => one.sandbox_id === want?.sandbox_id))
      }
    }),
  )
})

test('a worker whose steps may fail or be lost still reaches the desired state in the end', () => {
  fc.assert(
    fc.property(someWanted, someHeld, fc.array(fc.boolean(), { maxLength: 60 }), (wanted, start, luck) => {
      let held: readonly HeldRun[] = start
      const lucky = [...luck]
      for (let step = 0; step < 60 + luck.length; step++) {
        const [action] = decide(wanted, held, NONE)
        if (action === undefined) break
        if (lucky.shift() === false) continue
        held = perform(held, action, wanted)
      }
      assert.deepEqual(decide(wanted, held, NONE), [])
      for (const want of wanted.filter(({ desired_status: desired }) => desired === 'running')) {
        assert.ok(held.some(({ run_id }) => run_id === want.run_id))
      }
      assert.ok(held.every(({ run_id }) => wanted.some((want) => want.run_id === run_id)))
      for (const want of wanted.filter(({ desired_status: desired }) => desired === 'stopped')) {
        assert.ok(
          held.every((one) => one.run_id !== want.run_id || one.phase === 'ended'),
          'a stop that was interrupted is requested again',
        )
      }
    }),
  )
})

function perform(
  held: readonly HeldRun[],
  action: WorkerAction,
  wanted: readonly DesiredRunState[],
): readonly HeldRun[] {
  switch (action.kind) {
    case 'start': {
      const want = wanted.find(({ run_id }) => run_id === action.run_id)
      return want === undefined
        ? held
        : [...held, { run_id: want.run_id, sandbox_id: want.sandbox_id, phase: 'running' }]
    }
    case 'stop':
      return held.map((one) => (one.run_id === action.run_id ? { ...one, phase: 'ended' } : one))
    case 'remove':
      return held.filter((one) => one.run_id !== action.run_id)
  }
}
