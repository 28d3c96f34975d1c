import assert from 'node:assert/strict'
import { test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { noteFault } from '../support/reliability.ts'
import { FAULTS, faultOf } from './faults.ts'
import { explain, openLanes, playMany, playSeed, SCHEDULES_VARIABLE, SEED_VARIABLE, STEPS_VARIABLE } from './play.ts'

/** CI plays ten thousand, which take nine minutes beside other tests; docs/decisions/0026-fault-test.md says what they found. */
const SCHEDULES = Number(process.env[SCHEDULES_VARIABLE] ?? 1_000)
/** One that waits for the database leaves the processor to another. */
const LANES = 3
const LIMIT_MS = 40 * 60_000

const SEED = process.env[SEED_VARIABLE]

test('every law holds after every step of every schedule', { timeout: LIMIT_MS }, async (t) => {
  const { lanes, close } = await openLanes(LANES)
  try {
    const [lane] = lanes
    assert.ok(lane)
    if (SEED !== undefined) {
      const { breach, trace } = await playSeed(lane, Number(SEED), stepsAsked())
      assert.equal(breach, null, trace.join('\n'))
      return
    }
    const fromMs = systemClock.monotonicMs()
    const { schedules, counts, failed } = await playMany(lanes, { from: 1, count: SCHEDULES })
    const tookSecs = (systemClock.monotonicMs() - fromMs) / 1_000
    for (const seed of failed) t.diagnostic(await explain(lane, seed))
    assert.deepEqual(failed, [], 'the seeds of schedules that broke a law: see the diagnostics')

    const of = (what: string): number => counts.get(what) ?? 0
    t.diagnostic(
      `${String(schedules)} schedules, ${String(of('steps'))} steps, ${String(of('laws looked at'))} looks at laws in ${tookSecs.toFixed(0)} s`,
    )
    for (const fault of FAULTS) {
      const injected = [...counts].reduce((sum, [what, times]) => sum + (faultOf(what) === fault ? times : 0), 0)
      assert.ok(injected > 0 || schedules < 1_000, `no schedule had this fault: ${fault}`)
      noteFault({
        area: 'schedules',
        fault,
        injected,
        checked: `every law after each of ${String(of('steps'))} steps of ${String(schedules)} schedules; at the end everything is as desired`,
        found: `${String(of('laws looked at'))} checks of laws, no breach`,
      })
    }
  } finally {
    await close()
  }
})

function stepsAsked(): { readonly steps?: number } {
  const given = process.env[STEPS_VARIABLE]
  return given === undefined ? {} : { steps: Number(given) }
}
