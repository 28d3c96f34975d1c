/**
 * Runs the schedules of the seeds 1 to COUNT, and prints a `ScheduleReport` as JSON. The test runner watches every promise of a test
 * file by async hooks, so `schedules.test.ts` runs this in a process of its own: a schedule took 56 ms of processor time here, and 64
 * to 74 ms in the runner (2026-11, a load of 16, PostgreSQL not included).
 */
import { setPriority } from 'node:os'
import { describeFailure, openFixtures, runSeeds } from './run-seeds.ts'

export type ScheduleReport = {
  readonly schedules: number
  readonly counts: readonly (readonly [string, number])[]
  readonly failed: readonly number[]
  /** A description of each failed seed. */
  readonly failures: readonly string[]
}

/** The number of schedules that run at the same time: while one waits for the database, another uses the processor. */
const FIXTURES = 3
/** The nice value. Schedules simulate time, so they leave the processor to test files that run meanwhile and wait for real time. */
const LOW_PRIORITY = 10

setPriority(LOW_PRIORITY)
const { fixtures, close } = await openFixtures(FIXTURES)
const { schedules, counts, failed } = await runSeeds(fixtures, { from: 1, count: Number(process.argv[2]) })
const [fixture] = fixtures
const failures: string[] = []
for (const seed of failed) if (fixture !== undefined) failures.push(await describeFailure(fixture, seed))
await close()
const report: ScheduleReport = { schedules, counts: [...counts], failed, failures }
process.stdout.write(JSON.stringify(report))
