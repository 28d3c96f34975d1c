import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { runCommand } from '../../src/lib/run-command.ts'
import { noteFault } from '../support/reliability.ts'
import { FAULTS, faultOf } from './faults.ts'
import { openFixture } from './fixture.ts'
import { runSeed, SCHEDULES_VARIABLE, SEED_VARIABLE, STEPS_VARIABLE } from './run-seeds.ts'
import type { ScheduleReport } from './schedules-process.ts'

/**
 * The number of schedules. CI runs ten thousand; see docs/fault-tests.md.
 */
const SCHEDULES = Number(process.env[SCHEDULES_VARIABLE] ?? 1_000)
/**
 * Schedules have a low priority, so how long they take depends on the other test files. The limit ends them before that of a test
 * file does (`setup/run-tests.mjs`), so that the failure names this test.
 */
const LIMIT_MS = 50 * 60_000
const PROCESS = join(import.meta.dirname, 'schedules-process.ts')

const SEED = process.env[SEED_VARIABLE]

test('every invariant holds after every step of every schedule', { timeout: LIMIT_MS }, async (t) => {
  if (SEED !== undefined) {
    const fixture = await openFixture()
    const { violation, trace } = await runSeed(fixture, Number(SEED), requestedSteps())
    await fixture.close()
    assert.equal(violation, null, trace.join('\n'))
    return
  }
  const fromMs = systemClock.monotonicMs()
  const { schedules, failed, failures, ...report } = await runSchedules(t.signal)
  const counts = new Map(report.counts)
  const tookSecs = (systemClock.monotonicMs() - fromMs) / 1_000
  for (const failure of failures) t.diagnostic(failure)
  assert.deepEqual(failed, [], 'the seeds of schedules that violated an invariant: see the diagnostics')
  assert.equal(schedules, SCHEDULES)

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
})

function requestedSteps(): { readonly steps?: number } {
  const given = process.env[STEPS_VARIABLE]
  return given === undefined ? {} : { steps: Number(given) }
}

async function runSchedules(signal: AbortSignal): Promise<ScheduleReport> {
  const { stdout } = await runCommand(process.execPath, [PROCESS, String(SCHEDULES)], { timeoutMs: LIMIT_MS, signal })
  return JSON.parse(stdout) as ScheduleReport // the program's own format
}
