import { constants } from 'node:os'

/** What a runtime's `exec` ended with: an exit code, or null when a signal ended the command line itself. */
export type RuntimeExit = { readonly code: number | null }

/** Added to a signal's number by runtimes and shells when they tell it as an exit code. */
const SIGNAL_BASE = 128

/** Signals that a shell passes on as its own exit code only rarely: they end the process that gets them. */
const DEADLY: ReadonlySet<number> = new Set([
  constants.signals.SIGILL,
  constants.signals.SIGABRT,
  constants.signals.SIGBUS,
  constants.signals.SIGFPE,
  constants.signals.SIGKILL,
  constants.signals.SIGSEGV,
  constants.signals.SIGSYS,
])

/**
 * The exit code in the agent protocol's terms: -1 when a signal ended the process. A runtime tells death by signal n as
 * code 128 + n, which is also what a shell exits with after a child died so. It counts as death when the signal was
 * sent through the channel or is one that programs die of; else (130 of an interactive shell) the code stands.
 */
export function exitCodeOf(exit: RuntimeExit, sent: ReadonlySet<number>): number {
  if (exit.code === null) return -1
  const signal = exit.code - SIGNAL_BASE
  return sent.has(signal) || DEADLY.has(signal) ? -1 : exit.code
}
