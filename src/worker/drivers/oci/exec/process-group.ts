import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { hasErrorCode } from '../../../../lib/error-code.ts'
import type { Log } from '../../../../lib/log.ts'
import { nextTurn } from '../../../../lib/turns/next-turn.ts'
import { makeSignalQueue } from '../../../../lib/turns/signal-queue.ts'
import { tryCommand } from '../../../../lib/run-command.ts'
import type { Container } from '../container.ts'

/** Sends signals to the processes of one exec. */
export type ProcessGroup = {
  /** Sends a Linux signal, from 1 to 64, to every process of the group soon. Does nothing when the group has ended. */
  signal(signal: number): void
}

const SIGKILL = 9
/** How many times to search again for processes that a group forked while it was killed. */
const MAX_ROUNDS = 20
/** How many processes are read in one turn of the event loop. */
const TURN_PROCESSES = 32

/**
 * Creates the process group of a process in a container. `pids` are the host's ids of the process and of the command that
 * started it. With runc or a terminal, the process is the leader of its group. crun 1.8 leaves the process in the group of an
 * intermediate process that has ended (measured 2026-11).
 *
 * If the process ended before its group could be read, every group with an id between the two `pids` is signalled. Only
 * processes in the container's cgroup get the signal, so no other process of the machine that reuses such an id is
 * signalled.
 */
export function makeProcessGroup(
  initPid: number,
  pids: { readonly cli: number; readonly process: number },
  log: Log,
): ProcessGroup {
  const folder = cgroupFolder(initPid)
  const known = groupOf(pids.process)
  const isOurs = (group: number | null): boolean =>
    group !== null && (known === null ? group >= pids.cli && group <= pids.process : group === known)
  const sendToAll = async (signal: number): Promise<void> => {
    if (folder === null) return
    const reached = new Set<number>()
    for (let round = 0; round < (signal === SIGKILL ? MAX_ROUNDS : 1); round++) {
      const before = reached.size
      await eachProcess(folder, (pid) => {
        // The id may have passed to another process of the machine since it was listed.
        if (reached.has(pid) || !isOurs(groupOf(pid)) || !isBeneath(folder, cgroupFolder(pid))) return
        reached.add(pid)
        send(pid, signal)
      })
      if (reached.size === before) return
    }
  }
  return { signal: makeSignalQueue(loggingFailures(sendToAll, log)) }
}

function loggingFailures(send: (signal: number) => Promise<void>, log: Log): typeof send {
  return async (signal) => {
    try {
      await send(signal)
    } catch (error) {
      log.warn({ error, signal }, 'a signal could not be passed into a sandbox')
    }
  }
}

function isBeneath(folder: string, inner: string | null): boolean {
  return inner !== null && `${inner}/`.startsWith(`${folder}/`)
}

/** Returns a process's id in its innermost namespace, or null if the process is gone. */
export function innerPid(pid: number): number | null {
  const numbers = /^NSpid:\s*(.+)$/m.exec(readOrEmpty(`/proc/${String(pid)}/status`))?.[1]?.split(/\s+/)
  const last = numbers?.at(-1)
  return last === undefined ? null : Number(last)
}

/** Returns the cgroup folder of a container's processes, in the v1 hierarchy `pids` if it exists and otherwise in v2. */
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

/**
 * Visits every process in a cgroup and in the cgroups beneath it, which the sandbox may have created. Other work of the worker
 * gets its turns in between: a sandbox may have thousands of processes, and to read one takes about 50 µs.
 */
async function eachProcess(folder: string, visit: (pid: number) => void): Promise<void> {
  const folders = [folder]
  for (const at of folders) {
    await nextTurn()
    const pids = readOrEmpty(join(at, 'cgroup.procs')).split('\n').filter(Boolean).map(Number)
    folders.push(...foldersIn(at))
    for (const [at, pid] of pids.entries()) {
      if (at > 0 && at % TURN_PROCESSES === 0) await nextTurn()
      visit(pid)
    }
  }
}

function foldersIn(folder: string): readonly string[] {
  try {
    const entries = readdirSync(folder, { withFileTypes: true })
    return entries.filter((entry) => entry.isDirectory()).map((entry) => join(folder, entry.name))
  } catch {
    return [] // the cgroup ended with its last process
  }
}

/**
 * Returns a process's group id, or null if the process is gone. It is the fifth field of `/proc/<pid>/stat`, counted after the
 * name in parentheses.
 */
function groupOf(pid: number): number | null {
  const stat = readOrEmpty(`/proc/${String(pid)}/stat`)
  const group = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[2])
  return Number.isInteger(group) && group > 0 ? group : null
}

function send(pid: number, signal: number): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if (!hasErrorCode(error, 'ESRCH')) throw error
  }
}

function readOrEmpty(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return '' // the process or its cgroup has ended
  }
}

const RUNTIME_TIMEOUT_MS = 20_000
/**
 * The maximum number of processes of one command to signal one by one. Each signal is a call of the runtime, which
 * takes 40 ms (measured 2026-11).
 */
const MAX_SINGLE = 64

/**
 * Creates the process group whose leader is a command in gVisor. The host can't see processes in gVisor. The runtime signals
 * only single processes, so a shell in the sandbox signals the group. Without a shell, the command and its descendants are
 * signalled one by one.
 */
export function makeGvisorProcessGroup(container: Container, leader: number, log: Log): ProcessGroup {
  return { signal: makeSignalQueue(loggingFailures((signal) => signalGroup(container, leader, signal), log)) }
}

async function signalGroup(container: Container, leader: number, signal: number): Promise<void> {
  const script = `kill -${String(signal)} -${String(leader)}`
  const asked = await call(container, [
    'exec',
    '-user',
    '0:0',
    '-cap',
    'CAP_KILL',
    container.id,
    '/bin/sh',
    '-c',
    script,
  ])
  // The shell belongs to the sandbox, so its success is not trusted for SIGKILL. If the shell found no such group, the command
  // may have moved to another group.
  if (asked.code === 0 && signal !== SIGKILL) return
  const { stdout } = await call(container, ['ps', container.id])
  for (const pid of descendants(parseProcesses(stdout), leader).slice(0, MAX_SINGLE))
    await call(container, ['kill', '-pid', String(pid), container.id, String(signal)])
}

async function call({ runtime }: Container, args: readonly string[]): ReturnType<typeof tryCommand> {
  const [file = '', ...options] = runtime
  return await tryCommand(file, [...options, ...args], { timeoutMs: RUNTIME_TIMEOUT_MS })
}

type SeenProcess = { readonly pid: number; readonly parent: number }

/** Returns a live process and all its descendants. */
function descendants(processes: readonly SeenProcess[], pid: number): readonly number[] {
  const own = processes.filter((process) => process.pid === pid).map((process) => process.pid)
  const children = processes.filter((process) => process.parent === pid && process.pid !== pid)
  return [...own, ...children.flatMap((child) => descendants(processes, child.pid))]
}

/**
 * Parses the table of `runsc ps`: a header, then user, process and parent as first columns. Empty when the sandbox has
 * ended.
 */
function parseProcesses(table: string): readonly SeenProcess[] {
  const rows = table.split('\n').slice(1)
  return rows.flatMap((row) => {
    const [, pid = 0, parent = 0] = row.trim().split(/\s+/).map(Number)
    return pid > 0 ? [{ pid, parent }] : []
  })
}
