import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { Driver, Probe } from '../drivers/driver.ts'

/** How often the machine's capacity and the driver's abilities are looked at anew. */
const PROBE_MS = 15_000

type ProbeDeps = { readonly driver: Pick<Driver, 'probe'>; readonly clock: Clock; readonly log: Log }

/** Looks at what this machine can run now and then, until the signal. */
export async function keepProbing(
  { driver, clock, log }: ProbeDeps,
  onProbe: (probe: Probe) => void,
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    await interruptibleSleep(clock, PROBE_MS, signal)
    if (signal.aborted) return
    try {
      onProbe(await driver.probe())
    } catch (error) {
      log.warn({ error }, 'the driver can no longer work on this machine')
    }
  }
}
