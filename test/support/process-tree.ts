import { existsSync, readFileSync } from 'node:fs'
import { systemClock } from '../../src/lib/clock.ts'

/** The processes that a process started and that are there; of a PostgreSQL, its sessions and helpers. */
export function childrenOf(pid: number): readonly number[] {
  const path = `/proc/${String(pid)}/task/${String(pid)}/children`
  return read(path).trim().split(' ').filter((child) => child !== '').map(Number) // prettier-ignore
}

/** The words that a process was started with, or the title that it gave itself; empty when there is none. */
export function readCommandLine(pid: number): string {
  return read(`/proc/${String(pid)}/cmdline`)
}

/** Whether a process is there and has not ended; one that waits to be reaped has. */
export function isRunning(pid: number): boolean {
  return /\) [^ZX] /.test(read(`/proc/${String(pid)}/stat`))
}

/** Sends a signal to a process, unless it ended in the meantime. */
export function sendSignal(pid: number, signal: NodeJS.Signals): void {
  if (isRunning(pid)) process.kill(pid, signal)
}

/** Has a process and its children stand still for a time, in milliseconds. */
export async function freezeTree(pid: number, ms: number): Promise<void> {
  const frozen = [pid, ...childrenOf(pid)]
  for (const one of frozen) sendSignal(one, 'SIGSTOP')
  try {
    await systemClock.sleep(ms)
  } finally {
    for (const one of frozen) sendSignal(one, 'SIGCONT')
  }
}

/** A file of the kernel's about a process; empty when the process is gone, also when it goes meanwhile. */
function read(path: string): string {
  try {
    return existsSync(path) ? readFileSync(path, 'utf8') : ''
  } catch (error) {
    if (error instanceof Error && 'code' in error && (error.code === 'ESRCH' || error.code === 'ENOENT')) return ''
    throw error
  }
}
