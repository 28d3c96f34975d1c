import { closeSync, existsSync, openSync, readSync, statfsSync } from 'node:fs'
import { join } from 'node:path'
import { hasErrorCode } from '../../../../lib/error-code.ts'
import type { Meter } from '../../../metrics/meter.ts'
import { readInterfaceCounters } from '../../../processes/interface-counters.ts'

const MOUNT_POINT = '/sys/fs/cgroup'

type MeterInput = {
  /** The path of the run's cgroup, beneath the mount point. */
  readonly cgroup: string
  /** A folder on the run's writable disk. */
  readonly diskFolder: string
  /** The run's process 1. Null: its network isn't measured. */
  readonly initPid: number | null
  readonly mountPoint?: string
}

/** The files of a cgroup, which differ by the version of the kernel's interface. */
type CgroupFiles = {
  readonly cpu: string
  /** The processor time in nanoseconds, from the text of `cpu`. */
  readonly cpuNsOf: (text: string) => number
  readonly memory: string
  readonly memoryStat: string
  /** The line of `memoryStat` with the bytes that the kernel can drop at once. */
  readonly droppable: string
  readonly processes: string
}

/** Opens a meter of a container by its cgroup. Throws if the cgroup doesn't exist. */
export function openCgroupMeter({ cgroup, diskFolder, initPid, mountPoint = MOUNT_POINT }: MeterInput): Meter {
  const files = existsSync(join(mountPoint, 'cgroup.controllers'))
    ? filesOfV2(join(mountPoint, cgroup))
    : filesOfV1(mountPoint, cgroup)
  const opened = [files.cpu, files.memory, files.processes, files.memoryStat].map((path) => openSync(path, 'r'))
  const [cpu = -1, memory = -1, processes = -1, memoryStat = -1] = opened
  return {
    readCpuNs: () => nullIfGone(() => files.cpuNsOf(readText(cpu))),
    readMemoryBytes: () => nullIfGone(() => Number(readText(memory))),
    readRest: () => ({
      processes: nullIfGone(() => Number(readText(processes))),
      droppableBytes: nullIfGone(() => counterIn(readText(memoryStat), files.droppable)) ?? 0,
      diskBytes: usedBytesOf(diskFolder),
      ...readInterfaceCounters(initPid),
    }),
    close: () => {
      for (const file of opened) closeSync(file)
    },
  }
}

/** The used space of the file system of a folder. Null if the folder is gone. */
function usedBytesOf(folder: string): number | null {
  try {
    const { blocks, bfree, bsize } = statfsSync(folder)
    return (blocks - bfree) * bsize
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return null
    throw error
  }
}

function filesOfV2(dir: string): CgroupFiles {
  return {
    cpu: join(dir, 'cpu.stat'),
    cpuNsOf: (text) => Number(/^usage_usec (\d+)/m.exec(text)?.[1] ?? 0) * 1_000,
    memory: join(dir, 'memory.current'),
    memoryStat: join(dir, 'memory.stat'),
    droppable: 'inactive_file',
    processes: join(dir, 'pids.current'),
  }
}

function filesOfV1(mountPoint: string, cgroup: string): CgroupFiles {
  const memory = join(mountPoint, 'memory', cgroup)
  return {
    cpu: join(mountPoint, 'cpuacct', cgroup, 'cpuacct.usage'),
    cpuNsOf: Number,
    memory: join(memory, 'memory.usage_in_bytes'),
    memoryStat: join(memory, 'memory.stat'),
    droppable: 'total_inactive_file',
    processes: join(mountPoint, 'pids', cgroup, 'pids.current'),
  }
}

/** Null if the cgroup was removed: its open files then answer with ENODEV. */
function nullIfGone<Read>(read: () => Read): Read | null {
  try {
    return read()
  } catch (error) {
    if (hasErrorCode(error, 'ENODEV')) return null
    throw error
  }
}

/** The number of a line that has a name and a number. 0 if there is no such line. */
function counterIn(text: string, name: string): number {
  const at = text.startsWith(`${name} `) ? 0 : text.indexOf(`\n${name} `) + 1
  return at === 0 && !text.startsWith(`${name} `) ? 0 : Number.parseInt(text.slice(at + name.length + 1), 10)
}

/** All files that are read have less. One buffer serves all reads, because they don't overlap. */
const buffer = Buffer.alloc(4096)

function readText(file: number): string {
  return buffer.toString('latin1', 0, readSync(file, buffer, 0, buffer.length, 0))
}
