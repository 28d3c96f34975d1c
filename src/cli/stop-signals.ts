import { constants } from 'node:os'
import type { Config } from '../config.ts'
import { systemClock, type Clock } from '../lib/clock.ts'
import { printStatus } from './print-status.ts'

/** The abort signal for a clean shutdown, and the handler for signals of the operating system. */
export type StopSignals = {
  readonly signal: AbortSignal
  readonly handleSignal: (name: NodeJS.Signals) => void
}

/**
 * A second signal within this time counts as the first. npm forwards a Ctrl-C that the terminal also sends to this
 * process.
 */
const DUPLICATE_SIGNAL_MS = 1_000

/** How long a clean shutdown may take. A server that must also stop its sandboxes gets more time. */
function shutdownMostMs({ shutdown, drainSecs }: Pick<Config, 'shutdown' | 'drainSecs'>): number {
  return { keep: 10_000, stop: 60_000, drain: 60_000 + drainSecs * 1_000 }[shutdown]
}

/**
 * Creates the handler for stop signals. The first one requests a clean shutdown. Another one, a second later or more,
 * calls `force`. So does `afterLimit` if the clean shutdown takes too long.
 */
export function makeStopSignals(deps: {
  readonly clock: Clock
  readonly print: (text: string) => void
  readonly force: (name: NodeJS.Signals) => void
  /** Calls a function after the longest time of a clean shutdown, unless the process ends before. */
  readonly afterLimit: (act: () => void) => void
}): StopSignals {
  const stop = new AbortController()
  let firstAtMs: number | null = null
  return {
    signal: stop.signal,
    handleSignal(name) {
      const nowMs = deps.clock.monotonicMs()
      if (firstAtMs === null) {
        firstAtMs = nowMs
        deps.print(`${name}: shutting down`)
        deps.afterLimit(() => {
          deps.print('the shutdown takes too long: exiting at once; the next start, or `sandyard down`, cleans up')
          deps.force(name)
        })
        stop.abort(new Error(`stopped by ${name}`))
      } else if (nowMs - firstAtMs >= DUPLICATE_SIGNAL_MS) {
        deps.print(`${name} again: exiting at once; the next start cleans up`)
        deps.force(name)
      }
    },
  }
}

/**
 * Listens for SIGINT and SIGTERM. The first one aborts the returned signal, and a second one ends the process at once.
 * The process also ends if its clean shutdown takes too long.
 */
export function listenForStopSignals(config: Pick<Config, 'shutdown' | 'drainSecs'>): AbortSignal {
  const stop = makeStopSignals({
    clock: systemClock,
    print: printStatus,
    force: (name) => process.exit(128 + constants.signals[name]),
    afterLimit: (act) => {
      setTimeout(act, shutdownMostMs(config)).unref() // must not keep the process alive itself
    },
  })
  process.on('SIGINT', stop.handleSignal)
  process.on('SIGTERM', stop.handleSignal)
  if (process.env['npm_command'] === 'exec') watchLauncher(() => stop.handleSignal('SIGTERM'))
  return stop.signal
}

const LAUNCHER_POLL_MS = 200

/**
 * Calls a function when the parent process has ended. npx runs a program beneath a shell and sends its signals to the shell alone,
 * which dies of them and leaves the program behind.
 */
function watchLauncher(onEnded: () => void): void {
  const launcher = process.ppid
  const timer = setInterval(() => {
    if (process.ppid === launcher) return
    clearInterval(timer)
    onEnded()
  }, LAUNCHER_POLL_MS)
  timer.unref()
}

/** Resolves when the signal is aborted. */
export function waitForAbort(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}
