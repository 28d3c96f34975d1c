import assert from 'node:assert/strict'
import type { DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import type { SandboxSpec } from '../../src/domain/spec/spec.ts'
import type { CommandResult } from '../../src/lib/run-command.ts'
import type { Driver } from '../../src/worker/drivers/driver.ts'
import type { OciSettings } from '../../src/worker/drivers/oci/context.ts'
import { makeDesiredRun } from './desired-run.ts'
import { makeOciFixture, testWarm, type OciFixture } from './oci-driver.ts'
import { warmUp } from './warm-up.ts'

/** A real `oci` driver with the runtime under test, whose sandboxes belong to an attacker. */
export type AttackedDriver = AsyncDisposable & {
  readonly fixture: OciFixture
  readonly driver: Driver
  /** Starts a sandbox. */
  start(spec?: Partial<SandboxSpec>): Promise<DesiredRun>
  /** Runs a shell command as root of a sandbox. */
  inside(run: DesiredRun, command: string): Promise<CommandResult>
}

/**
 * Opens the driver. Disposing of it removes all sandboxes and fails if anything of them is left on the host. The
 * driver's folder is made in `parent`.
 */
export async function openAttackedDriver(
  overrides: Partial<OciSettings> = {},
  parent?: string,
): Promise<AttackedDriver> {
  const fixture = await makeOciFixture(undefined, undefined, undefined, parent)
  const driver = await fixture.open(overrides)
  if (testWarm() > 0)
    await warmUp(driver, 1).catch(async (error: unknown) => {
      await driver.close()
      throw error
    })
  return {
    fixture,
    driver,
    async start(spec = {}) {
      const desired = makeDesiredRun(spec)
      await driver.start(desired, new AbortController().signal)
      return desired
    },
    inside: (run, command) => fixture.exec(run.run_id, ['sh', '-c', command]),
    async [Symbol.asyncDispose]() {
      for (const run of await driver.list()) await driver.remove(run.run_id)
      await driver.close()
      const left = await fixture.leftovers()
      await fixture.remove()
      assert.deepEqual(left, [])
    },
  }
}
