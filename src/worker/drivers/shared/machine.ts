import { existsSync } from 'node:fs'
import { availableParallelism, totalmem } from 'node:os'
import { delimiter, join } from 'node:path'
import { roundMib } from '../../../domain/workers/disk-pressure.ts'
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
  /** How many times the space for disks all disks together may promise. */
  readonly diskOvercommit: number
}

/**
 * Measures the machine's capacity for sandboxes. The sizes of all disks together may be `diskLimitMib`. `heldMib` is memory that the
 * driver itself may take.
 */
export async function measureCapacity(
  { cpuOvercommit, hostReserveMib, diskReserve }: OfferedShare,
  diskLimitMib: number,
  heldMib = 0,
): Promise<Capacity> {
  return {
    vcpus: availableParallelism() * cpuOvercommit,
    memory_mib: Math.max(0, Math.floor(memoryForSandboxes(hostReserveMib) * OFFERED_MEMORY_SHARE) - heldMib),
    disk_mib: (await diskReserve.isShort()) ? 0 : offeredDiskMib(diskLimitMib),
  }
}

/** Null: there is no limit. */
function offeredDiskMib(limitMib: number): number | null {
  return Number.isFinite(limitMib) ? roundMib(limitMib) : null
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
