import { constants } from 'node:os'
import { systemClock } from '../lib/clock.ts'
import { printStatus } from './print-status.ts'
import { makeStopSignals } from './stop-signals.ts'

/** Aborted by the first SIGINT or SIGTERM of this process; a second one ends it at once. For commands that run until then. */
export function listenForStopSignals(): AbortSignal {
  const stop = makeStopSignals({
    clock: systemClock,
    say: printStatus,
    force: (name) => process.exit(128 + constants.signals[name]),
  })
  process.on('SIGINT', stop.handleSignal)
  process.on('SIGTERM', stop.handleSignal)
  return stop.signal
}

/** Resolves once the signal is aborted. */
export function waitForAbort(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}
