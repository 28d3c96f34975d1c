import type { SandboxSpec } from '../../src/domain/spec/spec.ts'
import type { Driver } from '../../src/worker/drivers/driver.ts'
import { makeDesiredRun } from './desired-run.ts'
import { waitUntil } from './wait.ts'

const NEVER = new AbortController().signal

/** Makes a driver keep this many warm sandboxes for a spec, by starting and removing as many runs with it. */
export async function warmUp(driver: Driver, count: number, spec: Partial<SandboxSpec> = {}): Promise<void> {
  for (let started = 0; started < count; started++) {
    const desired = makeDesiredRun(spec)
    await driver.start(desired, NEVER)
    await driver.stop(desired.run_id, 0)
    await driver.remove(desired.run_id)
    await driver.discard(desired.sandbox_id)
  }
  await waitUntil(() => readyIn(driver) >= count, 60_000) // at a load of 16, one took 15 s (2026-11)
}

/** How many warm sandboxes a driver has. */
export function readyIn(driver: Driver): number {
  return driver.pools?.().find(({ name }) => name === 'warm_sandboxes')?.ready ?? 0
}
