import { existsSync } from 'node:fs'
import { recordMachineClock, type MachineClockDeps } from '../../control/workers/machine-clock.ts'
import { interruptibleSleep, sinceBootMs, type Clock } from '../../lib/clock.ts'
import { JUMP_MS } from '../../lib/steady-time.ts'
import { readBootId } from '../../worker/processes/process-identity.ts'

const CHECK_EVERY_MS = 5_000
const RECORD_EVERY_MS = 60_000

/** Reads which boot of the machine this is. Null where the system doesn't tell. */
export async function readMachine(): Promise<MachineClockDeps['machine'] | null> {
  return existsSync('/proc/uptime') ? { bootId: await readBootId(), sinceBootMs } : null
}

type WatchedClock = Omit<MachineClockDeps, 'clock'> & {
  readonly clock: Clock
  /** How far the machine's clock is ahead of `clock`, in milliseconds. */
  readonly wallAheadMs: () => number
}

/** Logs when the machine's clock jumps, and records the clock, until the signal aborts. Never rejects. */
export async function watchClock({ wallAheadMs, ...deps }: WatchedClock, signal: AbortSignal): Promise<void> {
  const { clock, log } = deps
  let loggedMs = 0
  let recordedMs = clock.monotonicMs()
  while (!signal.aborted) {
    const aheadMs = wallAheadMs()
    if (Math.abs(aheadMs - loggedMs) > JUMP_MS) {
      loggedMs = aheadMs
      if (aheadMs === 0) log.info({}, "the machine's clock shows the server's time again")
      else log.warn({ ahead_ms: Math.round(aheadMs) }, JUMPED)
    }
    if (clock.monotonicMs() - recordedMs >= RECORD_EVERY_MS) {
      recordedMs = clock.monotonicMs()
      await recordMachineClock(deps).catch((error: unknown) => {
        log.warn({ error }, "the machine's clock could not be recorded; will retry")
      })
    }
    await interruptibleSleep(clock, CHECK_EVERY_MS, signal)
  }
}

const JUMPED =
  "the machine's clock jumped; the server keeps its own time, so nothing is billed or ended. If the machine's clock is " +
  'right now, restart the server, which adopts it'
