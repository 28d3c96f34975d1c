import { readdir } from 'node:fs/promises'
import type { Clock } from '../../lib/clock.ts'
import { readFileSyncOrNull } from '../../lib/files.ts'
import { commandLineOf, identifyProcess, isAlive, sendSignal, type ProcessIdentity } from './process-identity.ts'
import { SYSTEM_CALLS_SCRIPT } from './system-calls.ts'

const LOOK_MS = 5
/** A call that the kernel does not end, such as a mount of a disk that hangs. */
const LIMIT_MS = 20_000

/**
 * Ends the processes that make system calls for workers that have died, and waits until they are gone. Such a process finishes its
 * last call after its worker's death: it could attach and mount a disk that the next worker mounts too. Call this function before
 * anything of an earlier worker is adopted or cleaned up.
 */
export async function endOrphanedCallers(clock: Pick<Clock, 'monotonicMs' | 'sleep'>): Promise<void> {
  const orphans = (await readdir('/proc')).flatMap((name) => (/^\d+$/.test(name) ? orphanOf(Number(name)) : []))
  for (const { pid } of orphans) sendSignal(pid, 'SIGKILL')
  const deadlineMs = clock.monotonicMs() + LIMIT_MS
  while (orphans.some(isAlive)) {
    if (clock.monotonicMs() > deadlineMs)
      throw new Error(
        `process ${String(orphans.find(isAlive)?.pid)} of an earlier worker does not end: it waits for a disk`,
      )
    await clock.sleep(LOOK_MS)
  }
}

function orphanOf(pid: number): readonly ProcessIdentity[] {
  const worker = workerOf(pid)
  if (worker === null) return []
  const parent = Number(fieldOf(pid, 'PPid') ?? 0)
  // A caller forks for calls that need a process of their own. The worker may be in a container, and there it has another id:
  // the last of these.
  const isOwned = workerOf(parent) === worker || fieldOf(parent, 'NSpid')?.split(/\s+/).at(-1) === worker
  const orphan = isOwned ? null : identifyProcess(pid)
  return orphan === null ? [] : [orphan]
}

/** Returns the process id of the worker for which a process makes system calls, or null for any other process. */
function workerOf(pid: number): string | null {
  const args = commandLineOf(pid)
  return args.includes(SYSTEM_CALLS_SCRIPT) && args.includes('serve') ? (args[args.indexOf('serve') + 1] ?? null) : null
}

function fieldOf(pid: number, name: 'PPid' | 'NSpid'): string | undefined {
  const status = readFileSyncOrNull(`/proc/${String(pid)}/status`) ?? ''
  return new RegExp(`^${name}:\\s+(.*)$`, 'm').exec(status)?.[1]
}
