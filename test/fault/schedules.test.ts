import assert from 'node:assert/strict'
import { setPriority } from 'node:os'
import { test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { noteFault } from '../support/reliability.ts'
import { FAULTS, faultOf } from './faults.ts'
import {
  describeFailure,
  openFixtures,
  runSeed,
  runSeeds,
  SCHEDULES_VARIABLE,
  SEED_VARIABLE,
  STEPS_VARIABLE,
} from './run-seeds.ts'

/**
 * The number of schedules. CI runs ten thousand; see docs/fault-tests.md.
 */
const SCHEDULES = Number(process.env[SCHEDULES_VARIABLE] ?? 1_000)
/** The number of schedules that run at the same time: while one waits for the database, another uses the processor. */
const FIXTURES = 3
const LIMIT_MS = 40 * 60_000
/** The nice value. Schedules simulate time, so they leave the processor to test files that run meanwhile and wait for real time. */
const LOW_PRIORITY = 10

const SEED = process.env[SEED_VARIABLE]

test('every invariant holds after every step of every schedule', { timeout: LIMIT_MS }, async (t) => {
  setPriority(LOW_PRIORITY)
  const { fixtures, close } = await openFixtures(FIXTURES)
  try {
    const [fixture] = fixtures
    assert.ok(fixture)
    if (SEED !== undefined) {
      const { violation, trace } = await runSeed(fixture, Number(SEED), requestedSteps())
      assert.equal(violation, null, trace.join('\n'))
      return
    }
    const fromMs = systemClock.monotonicMs()
    const { schedules, counts, failed } = await runSeeds(fixtures, { from: 1, count: SCHEDULES })
    const tookSecs = (systemClock.monotonicMs() - fromMs) / 1_000
    for (const seed of failed) t.diagnostic(await describeFailure(fixture, seed))
    assert.deepEqual(failed, [], 'the seeds of schedules that violated an invariant: see the diagnostics')

    const of = (what: string): number => counts.get(what) ?? 0
    t.diagnostic(
      `${String(schedules)} schedules, ${String(of('steps'))} steps, ${String(of('invariants checked'))} checks of invariants in ${tookSecs.toFixed(0)} s`,
    )
    for (const fault of FAULTS) {
      const injected = [...counts].reduce((sum, [what, times]) => sum + (faultOf(what) === fault ? times : 0), 0)
      assert.ok(injected > 0 || schedules < 1_000, `no schedule had this fault: ${fault}`)
      noteFault({
        area: 'schedules',
        fault,
        injected,
        checked: `every invariant after each of ${String(of('steps'))} steps of ${String(schedules)} schedules; at the end the observed state is the desired state`,
        found: `${String(of('invariants checked'))} checks of invariants, no violation`,
      })
    }
  } finally {
    await close()
  }
})

function requestedSteps(): { readonly steps?: number } {
  const given = process.env[STEPS_VARIABLE]
  return given === undefined ? {} : { steps: Number(given) }
}
