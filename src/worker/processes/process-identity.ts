import { readFile } from 'node:fs/promises'
import type { Clock } from '../../lib/clock.ts'
import { readFileSyncOrNull } from '../../lib/files.ts'

/** A process of this machine, told apart from a later one with the same id by when it began. */
export type ProcessIdentity = {
  readonly pid: number
  /** Clock ticks since boot, field 22 of `/proc/<pid>/stat` (proc(5)). */
  readonly startTicks: number
}

/** Marks a live process; null when there is none with this id, or only its zombie. */
export function identifyProcess(pid: number): ProcessIdentity | null {
  const stat = readStat(pid)
  return stat === null || stat.isZombie ? null : { pid, startTicks: stat.startTicks }
}

/** Whether the marked process still lives. A zombie doesn't: it holds nothing but its exit code. */
export function isAlive(mark: ProcessIdentity): boolean {
  const now = identifyProcess(mark.pid)
  return now !== null && now.startTicks === mark.startTicks
}

/** For how long a process that was seen alive counts as alive. */
const SEEN_ALIVE_MS = 100

/** Answers as `isAlive` did at most `SEEN_ALIVE_MS` ago; that a process is dead is never remembered. */
export type LivenessCheck = (mark: ProcessIdentity) => boolean

/** Every start brings ten looks at all that run: with 40, the reading alone was 4 ms of processor for each (2026-11). */
export function makeCachedLivenessCheck({ monotonicMs }: Pick<Clock, 'monotonicMs'>): LivenessCheck {
  const seenAt = new WeakMap<ProcessIdentity, number>()
  return (mark) => {
    const nowMs = monotonicMs()
    if (nowMs - (seenAt.get(mark) ?? -Infinity) < SEEN_ALIVE_MS) return true
    if (!isAlive(mark)) return false
    seenAt.set(mark, nowMs)
    return true
  }
}

/** The command line of a process as its parts; empty for none. */
export function commandLineOf(pid: number): readonly string[] {
  const text = readFileSyncOrNull(`/proc/${String(pid)}/cmdline`)
  return text === null || text === '' ? [] : text.replace(/\0$/, '').split('\0')
}

/** Sends a signal; a process that is gone already is no error. */
export function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error
  }
}

/** Identifies this boot of the machine: no process of another boot is alive. */
export async function readBootId(): Promise<string> {
  return (await readFile('/proc/sys/kernel/random/boot_id', 'utf8')).trim()
}

function readStat(pid: number): { readonly startTicks: number; readonly isZombie: boolean } | null {
  const text = readFileSyncOrNull(`/proc/${String(pid)}/stat`)
  if (text === null) return null
  // The second field is the program's name in parentheses and may hold anything: count from the last one.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
  const state = fields[0]
  return { startTicks: Number(fields[19]), isZombie: state === 'Z' || state === 'X' }
}
