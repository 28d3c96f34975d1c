import { existsSync } from 'node:fs'
import { statfs } from 'node:fs/promises'
import { availableParallelism, totalmem } from 'node:os'
import { delimiter, join } from 'node:path'
import type { DiskReserve } from '../../disk-reserve.ts'
import type { Capacity } from '../../../contract/workers/worker-protocol.ts'

const MIB = 1024 * 1024

/** What a worker offers of its machine. */
export type OfferedShare = {
  /** How many virtual CPUs each real CPU counts as. */
  readonly cpuOvercommit: number
  /** The memory that sandboxes leave to the host. Null: 5 % of the machine's, at least 512 MiB. */
  readonly hostReserveMib: number | null
  /** The free disk space that sandboxes leave to the control plane. */
  readonly diskReserve: DiskReserve
}

/** Measures the machine's capacity for sandboxes. */
export async function measureCapacity(
  dir: string,
  { cpuOvercommit, hostReserveMib, diskReserve }: OfferedShare,
): Promise<Capacity> {
  const disk = await statfs(dir)
  return {
    vcpus: availableParallelism() * cpuOvercommit,
    memory_mib: Math.floor(memoryForSandboxes(hostReserveMib) * OFFERED_MEMORY_SHARE),
    disk_mib: Math.min(Math.floor((disk.bavail * disk.bsize) / MIB), await diskReserve.freeMib()),
  }
}

/** The rest is for what sandboxes need besides their own memory, such as the processes that run their commands. */
const OFFERED_MEMORY_SHARE = 15 / 16
const LEAST_DEFAULT_RESERVE_MIB = 512
const DEFAULT_RESERVE_SHARE = 0.05

/**
 * Returns the memory for all sandboxes together, in MiB: that of the machine without the host's reserve. Throws if the
 * reserve leaves nothing. The default reserve is at most half of the machine's memory.
 */
export function memoryForSandboxes(hostReserveMib: number | null, totalMib = Math.floor(totalmem() / MIB)): number {
  const fallback = Math.min(totalMib / 2, Math.max(LEAST_DEFAULT_RESERVE_MIB, totalMib * DEFAULT_RESERVE_SHARE))
  const left = Math.floor(totalMib - (hostReserveMib ?? fallback))
  if (left > 0) return left
  throw new Error(
    `SANDYARD_HOST_RESERVE_MIB is ${String(hostReserveMib)}; accepted: less than the machine's memory, ${String(totalMib)} MiB`,
  )
}

/** Returns the names of the programs that are in no folder of PATH. */
export function findMissingPrograms(names: readonly string[]): readonly string[] {
  const folders = (process.env['PATH'] ?? '').split(delimiter)
  return names.filter((name) => !folders.some((folder) => existsSync(join(folder, name))))
}
