import { closeSync, constants, openSync, readSync } from 'node:fs'
import { hasErrorCode } from '../../lib/error-code.ts'
import { readFileSyncOrNull } from '../../lib/files.ts'

/** A process that the kernel killed because memory ran out. */
export type MemoryKill = {
  /** The process's name as the kernel knows it: at most 15 characters, others escaped. */
  readonly program: string
  /** The memory that the process had in use. Null if the kernel did not write it. */
  readonly usedMib: number | null
  /** The path of the process's cgroup. Null if the kernel left the line with it out, as it does for many kills at once. */
  readonly cgroup: string | null
  /** The cgroup whose limit was reached. Null: the machine itself ran out of memory, or the line was left out. */
  readonly limitedBy: string | null
}

/** The messages of the kernel about processes that it killed because memory ran out. */
export type KernelLog = {
  /**
   * Returns the kills since the last call. The first call returns all that the kernel still remembers. Null if this process
   * can't read the kernel's log.
   */
  readMemoryKills(): readonly MemoryKill[] | null
  close(): void
}

/** Counts the processes that the kernel has killed since its start because memory ran out (proc(5)). Null before Linux 4.13. */
export function countMemoryKills(): number | null {
  const [, count] = /^oom_kill (\d+)$/m.exec(readFileSyncOrNull('/proc/vmstat') ?? '') ?? []
  return count === undefined ? null : Number(count)
}

/** The maximum length of a record (`CONSOLE_EXT_LOG_MAX` of the kernel). */
const RECORD_BYTES = 8192

/** Opens the kernel's log at the first read. Reads never block. */
export function openKernelLog(path = '/dev/kmsg'): KernelLog {
  let file: number | null = null
  const buffer = Buffer.alloc(RECORD_BYTES)
  const readKill = makeMemoryKillParser()

  const readRecord = (from: number): string | null => {
    for (;;) {
      try {
        const bytes = readSync(from, buffer, 0, RECORD_BYTES, null)
        return bytes === 0 ? null : buffer.toString('utf8', 0, bytes)
      } catch (error) {
        if (hasErrorCode(error, 'EAGAIN')) return null
        if (!hasErrorCode(error, 'EPIPE')) throw error // EPIPE: the next record was overwritten
      }
    }
  }
  return {
    readMemoryKills() {
      const kills: MemoryKill[] = []
      try {
        file ??= openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
        for (let record = readRecord(file); record !== null; record = readRecord(file)) {
          const kill = readKill(record)
          if (kill !== null) kills.push(kill)
        }
      } catch (error) {
        if (hasErrorCode(error, 'EPERM', 'EACCES', 'ENOENT', 'EINVAL')) return null
        throw error
      }
      return kills
    },
    close() {
      if (file !== null) closeSync(file)
      file = null
    },
  }
}

/**
 * Creates a parser of the records of `/dev/kmsg`, which are passed in order. It returns a kill for the record that completes its
 * description, and null for any other record.
 */
export function makeMemoryKillParser(): (record: string) => MemoryKill | null {
  let victim: Omit<MemoryKill, 'usedMib'> | null = null
  return (record) => {
    const message = record.slice(record.indexOf(';') + 1)
    victim = parseVictim(message) ?? victim
    const killed = parseKilled(message)
    if (killed === null) return null
    const known = victim?.program === killed.program ? victim : { cgroup: null, limitedBy: null }
    victim = null
    return { ...known, ...killed }
  }
}

/** The line before a kill: `oom-kill:constraint=…,oom_memcg=…,task_memcg=…,task=…,pid=…,uid=…`. */
function parseVictim(message: string): Omit<MemoryKill, 'usedMib'> | null {
  if (!message.startsWith('oom-kill:')) return null
  const [, cgroup, program] = /,task_memcg=(.*),task=(.*),pid=\d+,uid=\d+\s*$/m.exec(message) ?? []
  if (cgroup === undefined || program === undefined) return null
  return { program, cgroup, limitedBy: /,oom_memcg=(.*),task_memcg=/.exec(message)?.[1] ?? null }
}

/** The line of a kill: `Memory cgroup out of memory: Killed process 123 (dd) total-vm:…kB, anon-rss:…kB, …`. */
function parseKilled(message: string): Pick<MemoryKill, 'program' | 'usedMib'> | null {
  const [, program, sizes = ''] =
    /^(?:Memory cgroup o|O)ut of memory.*: Killed process \d+ \((.*)\) total-vm:(.*)/.exec(message) ?? []
  if (program === undefined) return null
  const usedKib = [...sizes.matchAll(/-rss:(\d+)kB/g)].reduce((sum, [, kib]) => sum + Number(kib), 0)
  return { program, usedMib: sizes.includes('-rss:') ? Math.round(usedKib / 1024) : null }
}
