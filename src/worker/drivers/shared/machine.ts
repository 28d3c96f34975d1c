import { existsSync } from 'node:fs'
import { statfs } from 'node:fs/promises'
import { availableParallelism, totalmem } from 'node:os'
import { delimiter, join } from 'node:path'
import type { Capacity } from '../../../contract/workers/worker-protocol.ts'

const MIB = 1024 * 1024

/** Measures the machine's capacity for sandboxes. Each real CPU counts as `cpuOvercommit` virtual CPUs. */
export async function measureCapacity(dir: string, cpuOvercommit: number): Promise<Capacity> {
  const disk = await statfs(dir)
  return {
    vcpus: availableParallelism() * cpuOvercommit,
    memory_mib: Math.floor(totalmem() / MIB),
    disk_mib: Math.floor((disk.bavail * disk.bsize) / MIB),
  }
}

/** Returns the names of the programs that are in no folder of PATH. */
export function findMissingPrograms(names: readonly string[]): readonly string[] {
  const folders = (process.env['PATH'] ?? '').split(delimiter)
  return names.filter((name) => !folders.some((folder) => existsSync(join(folder, name))))
}
