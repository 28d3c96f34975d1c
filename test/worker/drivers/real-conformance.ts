import { after, before } from 'node:test'
import type { RunId } from '../../../src/domain/ids.ts'
import type { CommandResult } from '../../../src/lib/run-command.ts'
import type { Driver } from '../../../src/worker/drivers/driver.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { makeVolumeFiles } from '../../../src/worker/volumes/volume-files.ts'
import { makeDesiredRun } from '../../support/desired-run.ts'
import { describeConformance } from './conformance.ts'

/** A driver that runs real sandboxes, and access to the machine for its tests. */
type RealFixture = {
  open(): Promise<Driver>
  exec(run: RunId, command: readonly string[]): Promise<CommandResult>
  leftovers(): Promise<readonly string[]>
  /** The folder of the default volume. */
  readonly volume: string
  remove(): Promise<void>
}

type RealSubject = {
  readonly name: string
  /** Why the driver can't run on this machine. Null if it can. */
  readonly whyNot: string | null
  readonly make: () => Promise<RealFixture>
}

/** Tests the guarantees of `Driver` on one that really runs sandboxes. */
export function describeRealConformance({ name, whyNot, make }: RealSubject): void {
  let made: RealFixture | null = null
  const fixture = (): RealFixture => {
    if (made === null) throw new Error('the fixture is not made yet')
    return made
  }
  before(async () => {
    if (whyNot === null) made = await make()
  })
  after(() => made?.remove())

  const runtime = {
    entrypoint: null,
    hostname: null,
    log_level: null,
    metrics_sample_interval_ms: null,
    disable_metrics_sample: false,
  }
  const cmd = ['sh', '-c', 'sleep 0.1; exit 7']
  describeConformance({
    name,
    whyNot,
    open: () => fixture().open(),
    makeRun: makeDesiredRun,
    specs: {
      failing: { image: 'elsewhere/none' },
      slow: { image: 'local/slow' },
      endsWith7: { runtime: { ...runtime, cmd, scripts: {}, shell: null, user: null, workdir: null } },
    },
    run: async (run, script) => (await fixture().exec(run, ['sh', '-c', script])).stdout,
    openDefaultVolume: () =>
      Promise.resolve(makeVolumeFiles({ root: fixture().volume, uidShift: 0, random: systemRandom })),
    leftovers: () => fixture().leftovers(),
  })
}
