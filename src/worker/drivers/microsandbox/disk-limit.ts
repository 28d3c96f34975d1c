import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { SandboxId } from '../../../domain/ids.ts'
import { nullIfGone, statOrNull, takenBytes } from '../../../lib/files.ts'
import { limitOfDisksMib } from '../../disk-reserve.ts'
import type { OfferedShare } from '../shared/machine.ts'
import { sandboxesFolder, vmPaths } from './installation.ts'

/**
 * Returns how many MiB the disks of all sandboxes may have together. The runtime makes sparse disks in a folder for each
 * sandbox.
 */
export async function measureDiskLimitMib(
  home: string,
  { diskReserve, diskOvercommit }: Pick<OfferedShare, 'diskReserve' | 'diskOvercommit'>,
): Promise<number> {
  const taken = await takenBelow(sandboxesFolder(home))
  return limitOfDisksMib(taken, { reserve: diskReserve, overcommit: diskOvercommit })
}

/** Returns what the files of a sandbox take, its disk included. */
export function measureTakenBytes(home: string, sandbox: SandboxId): Promise<number> {
  return takenBelow(join(sandboxesFolder(home), vmPaths(home, sandbox).name))
}

/** Adds up the bytes that all files in a folder take. What disappears meanwhile doesn't count. */
async function takenBelow(folder: string): Promise<number> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(nullIfGone)
  let bytes = 0
  for (const entry of entries ?? []) {
    const path = join(folder, entry.name)
    if (entry.isDirectory()) bytes += await takenBelow(path)
    else if (entry.isFile()) bytes += takenBytes((await statOrNull(path)) ?? { blocks: 0 })
  }
  return bytes
}
