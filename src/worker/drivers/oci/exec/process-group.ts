import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** Sends signals to what one exec started. */
export type ProcessGroup = {
  /** Sends a Linux signal number to every process of the group. A group that has ended is left alone. */
  signal(signal: number): void
}

const SIGKILL = 9
const MAX_SIGNAL = 64
/** A group that forks while it is killed is looked at again, so often at most. */
const MAX_ROUNDS = 20

/**
 * The group of a process in a container, given its host id and that of the command line that started it. runc and
 * terminals make the process the leader of its group; crun 1.8 leaves it in the group of a process between the two that
 * has ended (measured 2026-11). A process that ended before anybody could look has its group only guessed: by a number
 * between the two. The members are looked up among the container's own processes, by its cgroup, which proves that a
 * number was not given to somebody else since.
 */
export function makeProcessGroup(
  initPid: number,
  pids: { readonly cli: number; readonly process: number },
): ProcessGroup {
  const folder = cgroupFolder(initPid)
  const known = groupOf(pids.process)
  const isOurs = (group: number | null): boolean =>
    group !== null && (known === null ? group >= pids.cli && group <= pids.process : group === known)
  const members = (): readonly number[] =>
    folder === null ? [] : processesIn(folder).filter((pid) => isOurs(groupOf(pid)))
  return {
    signal(signal) {
      if (!Number.isInteger(signal) || signal < 1 || signal > MAX_SIGNAL) return
      const reached = new Set<number>()
      for (let round = 0; round < (signal === SIGKILL ? MAX_ROUNDS : 1); round++) {
        const fresh = members().filter((pid) => !reached.has(pid))
        if (fresh.length === 0) return
        for (const pid of fresh) {
          reached.add(pid)
          send(pid, signal)
        }
      }
    },
  }
}

/** The process id as the innermost of its namespaces counts it; null when the process is gone. */
export function innerPid(pid: number): number | null {
  const numbers = /^NSpid:\s*(.+)$/m.exec(readOrEmpty(`/proc/${String(pid)}/status`))?.[1]?.split(/\s+/)
  const last = numbers?.at(-1)
  return last === undefined ? null : Number(last)
}

/** The folder that lists a container's processes: cgroup v2, else the first hierarchy of v1 that has them. */
function cgroupFolder(pid: number): string | null {
  const lines = readOrEmpty(`/proc/${String(pid)}/cgroup`).split('\n')
  const entries = lines.flatMap((line) => {
    const [, controllers, path] = /^\d+:([^:]*):(.*)$/.exec(line) ?? []
    return controllers === undefined || path === undefined || path === '/' ? [] : [{ controllers, path }]
  })
  const v1 = entries.find((entry) => entry.controllers.split(',').includes('pids'))
  if (v1 !== undefined) return join('/sys/fs/cgroup/pids', v1.path)
  const v2 = entries.find((entry) => entry.controllers === '')
  return v2 === undefined ? null : join('/sys/fs/cgroup', v2.path)
}

/** Every process beneath a cgroup: a sandbox may have made groups of its own in it. */
function processesIn(folder: string): readonly number[] {
  const own = readOrEmpty(join(folder, 'cgroup.procs'))
    .split('\n')
    .filter((line) => line !== '')
  return [...own.map(Number), ...foldersIn(folder).flatMap((inner) => processesIn(inner))]
}

function foldersIn(folder: string): readonly string[] {
  try {
    const entries = readdirSync(folder, { withFileTypes: true })
    return entries.filter((entry) => entry.isDirectory()).map((entry) => join(folder, entry.name))
  } catch {
    return [] // the cgroup ended with its last process
  }
}

/** The fifth field of `/proc/<pid>/stat`; the second, a name in brackets, may hold anything. Null when it is gone. */
function groupOf(pid: number): number | null {
  const stat = readOrEmpty(`/proc/${String(pid)}/stat`)
  const group = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[2])
  return Number.isInteger(group) && group > 0 ? group : null
}

function send(pid: number, signal: number): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    const isGone = error instanceof Error && 'code' in error && error.code === 'ESRCH'
    if (!isGone) throw error
  }
}

function readOrEmpty(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return '' // the process or its cgroup has ended
  }
}
