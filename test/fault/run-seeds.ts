import { converge } from './converge.ts'
import { openFixture, type Fixture } from './fixture.ts'
import { ALL_MECHANISMS, runSchedule, type ScheduleResult, type SafetyMechanisms } from './schedule.ts'
import { MAX_STEPS, runSteps } from './steps.ts'

export type RunOptions = {
  readonly mechanisms?: SafetyMechanisms
  /** The maximum number of steps with faults. By default, the seed decides. */
  readonly steps?: number
}

/**
 * Runs the schedule of a seed: first its steps with their faults, then without faults until the world has converged.
 */
export function runSeed(fixture: Fixture, seed: number, options: RunOptions = {}): Promise<ScheduleResult> {
  const { mechanisms = ALL_MECHANISMS, steps = MAX_STEPS } = options
  return runSchedule(fixture, { seed, mechanisms }, async (world) => {
    await runSteps(world, steps)
    await converge(world)
  })
}

/**
 * The result of many schedules: the sums of their counters, and the seeds of the schedules that violated an invariant.
 */
export type RunSummary = {
  readonly schedules: number
  readonly counts: ReadonlyMap<string, number>
  readonly failed: readonly number[]
}

/** The number of failed schedules after which no more are run. */
const MAX_FAILURES = 3

/** The number of schedules on a fixture after which it is vacuumed. */
const VACUUM_EVERY = 50

/** Runs seeds on all fixtures in parallel, one at a time on each. Stops after `MAX_FAILURES` failures. */
export async function runSeeds(
  fixtures: readonly Fixture[],
  { from, count }: { readonly from: number; readonly count: number },
): Promise<RunSummary> {
  const counts = new Map<string, number>()
  const failed: number[] = []
  let next = from
  let schedules = 0
  const runOn = async (fixture: Fixture): Promise<void> => {
    let ran = 0
    while (next < from + count && failed.length < MAX_FAILURES) {
      const seed = next++
      const outcome = await runSeed(fixture, seed)
      schedules += 1
      ran += 1
      if (ran % VACUUM_EVERY === 0) await fixture.vacuum()
      for (const [what, times] of outcome.counts) counts.set(what, (counts.get(what) ?? 0) + times)
      if (outcome.violation !== null) failed.push(seed)
    }
  }
  await Promise.all(fixtures.map(runOn))
  return { schedules, counts, failed }
}

/**
 * Tries the seeds 1 to `count` with the given safety mechanisms. Resolves with the first that violates an invariant, or
 * null.
 */
export async function findViolatingSeed(
  fixture: Fixture,
  { count, mechanisms }: { readonly count: number; readonly mechanisms: SafetyMechanisms },
): Promise<{ readonly seed: number; readonly message: string } | null> {
  for (let seed = 1; seed <= count; seed++) {
    const { violation } = await runSeed(fixture, seed, { mechanisms })
    if (violation !== null) return { seed, message: violation.message }
  }
  return null
}

/**
 * Runs a failed seed with ever more steps until an invariant is violated. Resolves with that violation, the trace of
 * those steps, and the command that repeats them.
 */
export async function describeFailure(fixture: Fixture, seed: number): Promise<string> {
  let steps = 0
  while (steps < MAX_STEPS && (await runSeed(fixture, seed, { steps })).violation === null) steps += 1
  const { violation, trace } = await runSeed(fixture, seed, { steps })
  return [
    `seed ${String(seed)}, its first ${String(steps)} steps: ${violation?.stack ?? 'it does not fail again, so something in it does not depend on the seed'}`,
    ...trace,
    `to repeat it: ${SEED_VARIABLE}=${String(seed)} ${STEPS_VARIABLE}=${String(steps)} npm test -- test/fault`,
  ].join('\n')
}

export const SEED_VARIABLE = 'SANDYARD_FAULT_SEED'
export const STEPS_VARIABLE = 'SANDYARD_FAULT_STEPS'
export const SCHEDULES_VARIABLE = 'SANDYARD_FAULT_SCHEDULES'

/** Opens several fixtures. `close` closes all of them. */
export async function openFixtures(
  count: number,
): Promise<{ readonly fixtures: readonly Fixture[]; readonly close: () => Promise<void> }> {
  const fixtures = await Promise.all(Array.from({ length: count }, () => openFixture()))
  return {
    fixtures,
    async close() {
      await Promise.all(fixtures.map((fixture) => fixture.close()))
    },
  }
}
