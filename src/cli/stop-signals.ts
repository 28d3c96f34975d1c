import type { Clock } from '../lib/clock.ts'

/** What ends a program: the signal that asks for a clean stop, and how a signal of the system is told. */
export type StopSignals = {
  readonly signal: AbortSignal
  readonly handleSignal: (name: NodeJS.Signals) => void
}

/** How long after a first signal another one is the same wish: npm passes on a Ctrl-C that the terminal sent us too. */
const DUPLICATE_SIGNAL_MS = 1_000

/** The first signal asks for a clean stop; one that comes later than a second after it calls `force`. */
export function makeStopSignals(deps: {
  readonly clock: Clock
  readonly say: (text: string) => void
  readonly force: (name: NodeJS.Signals) => void
}): StopSignals {
  const stop = new AbortController()
  let firstAtMs: number | null = null
  return {
    signal: stop.signal,
    handleSignal(name) {
      const nowMs = deps.clock.monotonicMs()
      if (firstAtMs === null) {
        firstAtMs = nowMs
        deps.say(`${name}: shutting down`)
        stop.abort(new Error(`stopped by ${name}`))
      } else if (nowMs - firstAtMs >= DUPLICATE_SIGNAL_MS) {
        deps.say(`${name} again: leaving at once; the next start sets right what this one leaves`)
        deps.force(name)
      }
    },
  }
}
