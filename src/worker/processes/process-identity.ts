import { readFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import type { Clock } from '../../lib/clock.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import { readFileSyncOrNull } from '../../lib/files.ts'

/** A process of this machine. Its start time distinguishes it from a later process with the same id. */
export type ProcessIdentity = {
  readonly pid: number
  /** The start time in clock ticks since boot: field 22 of `/proc/<pid>/stat` (proc(5)). */
  readonly startTicks: number
}

/** Identifies a live process. Null when no process has this id, or when it is a zombie. */
export function identifyProcess(pid: number): ProcessIdentity | null {
  const stat = readStat(pid)
  return stat === null || stat.isZombie ? null : { pid, startTicks: stat.startTicks }
}

/** Whether the process is still alive. A zombie doesn't count as alive, because only its exit code is left. */
export function isAlive(process: ProcessIdentity): boolean {
  const now = identifyProcess(process.pid)
  return now !== null && now.startTicks === process.startTicks
}

/** How long a process counts as alive after a check found it alive. */
const SEEN_ALIVE_MS = 100

/** Like `isAlive`, but `true` may be up to `SEEN_ALIVE_MS` old. `false` is always current. */
export type LivenessCheck = (mark: ProcessIdentity) => boolean

/**
 * Creates a liveness check with a cache. Each start of a sandbox checks the processes of all runs ten times. With 40
 * runs, checks without a cache took 4 ms per start (2026-11).
 */
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

/** Returns the arguments of a process's command line. Empty when there is no such process. */
export function commandLineOf(pid: number): readonly string[] {
  const text = readFileSyncOrNull(`/proc/${String(pid)}/cmdline`)
  return text === null || text === '' ? [] : text.replace(/\0$/, '').split('\0')
}

/** Describes a process that doesn't end: its state and the function of the kernel in which it waits (proc_pid_stat(5), proc_pid_wchan(5)). */
export function describeProcess(pid: number): string {
  const stat = readFileSyncOrNull(`/proc/${String(pid)}/stat`)
  if (stat === null) return `${String(pid)} (gone meanwhile)`
  const state = stat.charAt(stat.lastIndexOf(')') + 2)
  const where = readFileSyncOrNull(`/proc/${String(pid)}/wchan`) ?? ''
  return `${String(pid)} (state ${state}${where === '' || where === '0' ? '' : ` in ${where}`})`
}

/** Sends a signal, by its name or number. A missing process is not an error. */
export function sendSignal(pid: number, signal: NodeJS.Signals | number): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if (!hasErrorCode(error, 'ESRCH')) throw error
  }
}

/** Whether a process has executed a program since it was forked. False when no process has this id. */
export function hasExecuted(pid: number): boolean {
  const stat = readStat(pid)
  return stat !== null && !stat.isZombie && (stat.flags & PF_FORKNOEXEC) === 0
}

/** The kernel's mark of a process that was forked and has executed nothing yet (linux/sched.h). */
const PF_FORKNOEXEC = 0x40

/** Returns the id of the machine's current boot. Processes from another boot are no longer alive. */
export async function readBootId(): Promise<string> {
  return (await readFile('/proc/sys/kernel/random/boot_id', 'utf8')).trim()
}

type ProcessStat = { readonly startTicks: number; readonly isZombie: boolean; readonly flags: number }

function readStat(pid: number): ProcessStat | null {
  const text = readStatFile(pid)
  if (text === null) return null
  // The second field is the program's name in parentheses, which may contain any character. Fields are therefore
  // counted from the last parenthesis.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
  const state = fields[0]
  return { startTicks: Number(fields[19]), isZombie: state === 'Z' || state === 'X', flags: Number(fields[6]) }
}

/** Reads the file at once. Most processes that are looked at live, and a look at the path before took two fifths of the time (2026-11). */
function readStatFile(pid: number): string | null {
  try {
    return readFileSync(`/proc/${String(pid)}/stat`, 'utf8')
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT', 'ESRCH')) return null
    throw error
  }
}
