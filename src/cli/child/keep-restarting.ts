import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { printStatus } from '../print-status.ts'

/** How a child ended: after it was ready, before, or so that no other is to follow. */
export type ChildOutcome = 'was ready' | 'was unready' | 'over'

/** The pause before the next child. It doubles each time, up to the maximum, and begins anew after a child that was ready. */
const RESTART_MIN_MS = 200
const RESTART_MAX_MS = 15_000

type RestartDeps = {
  readonly clock: Pick<Clock, 'sleep'>
  readonly log: Log
  /** What the child is, for people, such as `the worker of this machine`. */
  readonly what: string
}

/** Runs a child again whenever it has ended, until the signal aborts. `runOnce` runs one to its end. Never rejects. */
export async function keepRestarting(
  { clock, log, what }: RestartDeps,
  runOnce: () => Promise<ChildOutcome>,
  signal: AbortSignal,
): Promise<void> {
  for (let pauseMs = RESTART_MIN_MS; !signal.aborted;) {
    const outcome = await runOnce().catch((error: unknown) => {
      log.error({ error }, `${what} could not be started`)
      return 'was unready' as const
    })
    if (outcome === 'over' || signal.aborted) return
    if (outcome === 'was ready') pauseMs = RESTART_MIN_MS
    printStatus(`${what} ended; it starts again in ${String(pauseMs / 1000)} s`)
    await interruptibleSleep(clock, pauseMs, signal)
    pauseMs = Math.min(2 * pauseMs, RESTART_MAX_MS)
  }
}
