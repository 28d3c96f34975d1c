import { constants } from 'node:os'
import type { RuntimeExit } from '../run/runtime/launcher.ts'

/** Runtimes and shells add this to a signal's number to report it as an exit code. */
const SIGNAL_BASE = 128

/** Signals that end a process. Their codes (128 + number) are rarely the exit code of a shell that was not killed. */
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
 * Returns the exit code for the agent protocol: -1 if a signal ended the process. A runtime reports signal n as code
 * 128 + n. A shell reports the same code if the signal killed its child. Such a code becomes -1 if the signal was sent
 * through the channel or is in `DEADLY`. Other codes stay unchanged, such as 130 from an interactive shell.
 */
export function exitCodeOf(exit: RuntimeExit, sent: ReadonlySet<number>): number {
  if (exit.code === null) return -1
  const signal = exit.code - SIGNAL_BASE
  return sent.has(signal) || DEADLY.has(signal) ? -1 : exit.code
}
