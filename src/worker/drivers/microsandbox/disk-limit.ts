import { readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrorCode } from '../../../lib/error-code.ts'
import type { OfferedShare } from '../shared/machine.ts'
import { sandboxesFolder } from './installation.ts'

const MIB = 1024 * 1024
const STAT_BLOCK_BYTES = 512

/**
 * Returns how many MiB the disks of all sandboxes may have together. The runtime makes sparse disks in a folder for each
 * sandbox. What they take already counts as space for disks, so the limit stays the same while sandboxes write.
 */
export async function measureDiskLimitMib(
  home: string,
  { diskReserve, diskOvercommit }: Pick<OfferedShare, 'diskReserve' | 'diskOvercommit'>,
): Promise<number> {
  const takenMib = (await allocatedBytes(sandboxesFolder(home))) / MIB
  return ((await diskReserve.freeMib()) + takenMib) * diskOvercommit
}

/** Adds up the blocks of all files in a folder. What disappears meanwhile doesn't count. */
async function allocatedBytes(folder: string): Promise<number> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(ignoreMissing)
  let bytes = 0
  for (const entry of entries ?? []) {
    const path = join(folder, entry.name)
    if (entry.isDirectory()) bytes += await allocatedBytes(path)
    else if (entry.isFile()) bytes += ((await stat(path).catch(ignoreMissing))?.blocks ?? 0) * STAT_BLOCK_BYTES
  }
  return bytes
}

function ignoreMissing(error: unknown): null {
  if (hasErrorCode(error, 'ENOENT') || hasErrorCode(error, 'ENOTDIR')) return null
  throw error
}
