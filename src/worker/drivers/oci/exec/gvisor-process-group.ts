import type { Log } from '../../../../lib/log.ts'
import { tryCommand } from '../../../../lib/run-command.ts'
import type { ProcessGroup } from './process-group.ts'
import type { Container } from './container.ts'

const SIGKILL = 9
const MAX_SIGNAL = 64
const RUNTIME_TIMEOUT_MS = 20_000
/** The most processes of one command that get a signal one by one; each costs a call of 40 ms (measured 2026-11). */
const MAX_SINGLE = 64

/**
 * The process group that a command leads in gVisor, whose processes the host can't see. The runtime signals single
 * processes only, so a shell of the sandbox is asked to signal the group; where there is none, the command and its
 * descendants get the signal one by one. Signals arrive in the order in which they were sent.
 */
export function makeGvisorProcessGroup(container: Container, leader: number, log: Log): ProcessGroup {
  let last: Promise<void> = Promise.resolve()
  return {
    signal(signal) {
      if (!Number.isInteger(signal) || signal < 1 || signal > MAX_SIGNAL) return
      last = last
        .then(() => signalGroup(container, leader, signal))
        .catch((error: unknown) => {
          log.warn({ err: error, signal, run_id: container.id }, 'a signal could not be passed into a sandbox')
        })
    },
  }
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
  // The shell is the sandbox's own, so a kill doesn't take its word. Where it found no such group, the command may have
  // left it for one of its own.
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

/** A process, if it lives, and all that come from it. */
function descendants(processes: readonly SeenProcess[], pid: number): readonly number[] {
  const own = processes.filter((process) => process.pid === pid).map((process) => process.pid)
  const children = processes.filter((process) => process.parent === pid && process.pid !== pid)
  return [...own, ...children.flatMap((child) => descendants(processes, child.pid))]
}

/** The table of `runsc ps`: a head, then user, process and parent as the first columns; empty when the sandbox ended. */
function parseProcesses(table: string): readonly SeenProcess[] {
  const rows = table.split('\n').slice(1)
  return rows.flatMap((row) => {
    const [, pid = 0, parent = 0] = row.trim().split(/\s+/).map(Number)
    return pid > 0 ? [{ pid, parent }] : []
  })
}
