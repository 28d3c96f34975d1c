import type { Resources } from '../../../../domain/spec/spec.ts'

/** The limits of all sandboxes of an installation together. */
export type ParentLimits = { readonly memoryBytes: number; readonly pids: number }

/** The limits of one sandbox. */
export type CgroupLimits = { readonly memoryBytes: number; readonly vcpus: number; readonly pids: number }

/** The maximum rates at which a sandbox reads, and at which it writes, its disk. Null: no limit. */
export type DiskThrottle = { readonly bytesPerSec: number | null; readonly iops: number | null }

/** The name of the runtime's own cgroup beneath the driver's. */
export const RUNTIME_CGROUP = 'c'
/** What follows a run's name in the name of the cgroup for its commands. */
const COMMANDS_SUFFIX = '.commands'
export const CPU_PERIOD_US = 100_000

const MIB = 1024 * 1024

/** The part of the machine's process ids that sandboxes may use. The host keeps the rest. */
const PIDS_SHARE = 0.75
/** The part of the sandboxes' process ids that is divided among sandboxes by memory. The rest is for their commands. */
const DIVIDED_SHARE = 0.75
const BASE_PIDS = 512
/** Below this number, gVisor and common init systems can't start. */
const LEAST_PIDS = 96

/** Returns how many process ids all sandboxes may use, from `kernel.pid_max` and `kernel.threads-max`. */
export function pidsOfAllSandboxes(kernel: { readonly pidMax: number; readonly threadsMax: number }): number {
  return Math.floor(Math.min(kernel.pidMax, kernel.threadsMax) * PIDS_SHARE)
}

/** The memory of an open file, which the kernel charges to the cgroup: `filp` in /proc/slabinfo (kernel 6.18). */
const OPEN_FILE_BYTES = 192

/** Returns how many files sandboxes with this much memory could have open. */
export function openFilesOfAllSandboxes({ memoryBytes }: Pick<ParentLimits, 'memoryBytes'>): number {
  return Math.ceil(memoryBytes / OPEN_FILE_BYTES)
}

export type PidsPolicy = {
  /** The maximum number of processes and threads of one sandbox, whatever its size. */
  readonly most: number
  readonly perGib: number
  /** The limits of all sandboxes, which are divided among them by memory. */
  readonly parent: ParentLimits
}

/**
 * Returns how many processes and threads a sandbox may have: a base plus a number for each GiB, but not more than its share
 * of the parent's limit. Placement never gives out more memory than the parent has, so the shares of all sandboxes fit.
 */
export function pidsOf(memoryMib: number, { most, perGib, parent }: PidsPolicy): number {
  const bySize = BASE_PIDS + perGib * (memoryMib / 1024)
  const share = (parent.pids * DIVIDED_SHARE * memoryMib * MIB) / parent.memoryBytes
  return Math.floor(Math.min(most, bySize, Math.max(LEAST_PIDS, share)))
}

/** Returns the limits of a sandbox with these resources. */
export function limitsOf({ memory_mib, vcpus }: Resources, policy: PidsPolicy): CgroupLimits {
  return { memoryBytes: memory_mib * MIB, vcpus, pids: pidsOf(memory_mib, policy) }
}

/** Returns the name of the cgroup for a run's commands. */
export function commandsCgroupOf(name: string): string {
  return `${name}${COMMANDS_SUFFIX}`
}

/** Returns the runs to which these cgroups belong, without duplicates. */
export function runsOfCgroups(names: readonly string[]): readonly string[] {
  return [
    ...new Set(names.map((name) => (name.endsWith(COMMANDS_SUFFIX) ? name.slice(0, -COMMANDS_SUFFIX.length) : name))),
  ]
}

/** Of each process that serves a command: its own memory, with crun 0.43 MiB (measured 2026-11), and its threads. */
const COMMAND_COST = { native: { memoryMib: 2, pids: 4 }, go: { memoryMib: 32, pids: 24 } }
const COMMANDS_BASE_MIB = 32

/**
 * Returns the limits of the processes that serve the commands of one sandbox, at most `sessions` at once. `native` runtimes
 * are written in C, the others in Go.
 */
export function limitsOfCommands(
  { vcpus }: Pick<Resources, 'vcpus'>,
  { sessions, language }: { readonly sessions: number; readonly language: keyof typeof COMMAND_COST },
): CgroupLimits {
  const { memoryMib, pids } = COMMAND_COST[language]
  return {
    memoryBytes: (COMMANDS_BASE_MIB + sessions * memoryMib) * MIB,
    vcpus: Math.max(1, vcpus), // less would make the start of each command slow
    pids: sessions * pids,
  }
}

/** Returns the processor time in each period, in microseconds. */
export function quotaUs(vcpus: number): number {
  return Math.max(1000, Math.round(vcpus * CPU_PERIOD_US)) // the kernel's smallest quota is 1 ms
}

/** Returns a weight in proportion to the vCPUs, within the range that the kernel accepts. */
export function weightOf(
  vcpus: number,
  range: { readonly perVcpu: number; readonly least: number; readonly most: number },
): number {
  return Math.min(range.most, Math.max(range.least, Math.round(vcpus * range.perVcpu)))
}
