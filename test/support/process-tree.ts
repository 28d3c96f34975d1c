import { existsSync, readFileSync } from 'node:fs'
import { systemClock } from '../../src/lib/clock.ts'
import { hasErrorCode } from '../../src/lib/error-code.ts'

/** The children of a process. Those of PostgreSQL are its sessions and helpers. */
export function childrenOf(pid: number): readonly number[] {
  const path = `/proc/${String(pid)}/task/${String(pid)}/children`
  return read(path).trim().split(' ').filter((child) => child !== '').map(Number) // prettier-ignore
}

/** The command line of a process, or the title that it set; empty when the process is gone. */
export function readCommandLine(pid: number): string {
  return read(`/proc/${String(pid)}/cmdline`)
}

/** Whether a process exists and has not ended. A zombie has ended. */
export function isRunning(pid: number): boolean {
  return /\) [^ZX] /.test(read(`/proc/${String(pid)}/stat`))
}

/** Sends a signal to a process, unless it has ended. */
export function sendSignal(pid: number, signal: NodeJS.Signals): void {
  if (isRunning(pid)) process.kill(pid, signal)
}

/** Stops a process and its children with SIGSTOP, and continues them after `ms`. */
export async function freezeTree(pid: number, ms: number): Promise<void> {
  const frozen = [pid, ...childrenOf(pid)]
  for (const one of frozen) sendSignal(one, 'SIGSTOP')
  try {
    await systemClock.sleep(ms)
  } finally {
    for (const one of frozen) sendSignal(one, 'SIGCONT')
  }
}

/** Reads a file of a process in /proc; empty when the process is gone. */
function read(path: string): string {
  try {
    return existsSync(path) ? readFileSync(path, 'utf8') : ''
  } catch (error) {
    if (hasErrorCode(error, 'ESRCH', 'ENOENT')) return ''
    throw error
  }
}
