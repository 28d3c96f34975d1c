import { interruptibleSleep, type Clock } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import type { ControlPlane } from './control-plane.ts'
import type { Wish } from './streams.ts'

export type StandByDeps = {
  readonly controlPlane: Pick<ControlPlane, 'standBy'>
  readonly clock: Clock
  readonly log: Log
  /** Serves a stream that is wanted; must not fail. */
  readonly serve: (wish: Wish) => void
}

/**
 * On how many connections a worker stands by: so many streams begin at once without a sync. Opening a channel took 8.1 ms
 * at the median by tickets and takes 6.2, and the sync that followed took the processor from its first command: the public
 * client's `exec` of `true` took 51 ms and takes 29 to 39 (2026-11, 2 cores).
 */
const CONNECTIONS = 4
/** How long after a failure it is tried again. */
const RETRY_MS = 500

/** Keeps the connections open, each anew once it is in use, until the signal. */
export async function keepStandingBy(deps: StandByDeps, signal: AbortSignal): Promise<void> {
  await Promise.all(Array.from({ length: CONNECTIONS }, () => keepOne(deps, signal)))
}

/** That nothing was wanted for a while is no failure. */
async function keepOne({ controlPlane, clock, log, serve }: StandByDeps, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    const fromMs = clock.monotonicMs()
    try {
      const { asked, socket } = await controlPlane.standBy(signal)
      serve({ asked, connect: () => Promise.resolve(socket) })
    } catch (error) {
      if (clock.monotonicMs() - fromMs >= RETRY_MS) continue
      log.debug({ error }, 'standing by failed; it is tried again')
      await interruptibleSleep(clock, RETRY_MS, signal)
    }
  }
}
