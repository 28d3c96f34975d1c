import { readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { SandboxId } from '../../../../domain/ids.ts'
import { hasErrorCode } from '../../../../lib/error-code.ts'
import type { DiskReserve } from '../../../disk-reserve.ts'
import { StartError } from '../../../start-error.ts'

/**
 * The sizes of all disks, those of stopped sandboxes included. Disks are sparse, so together they may promise more than
 * the file system has: up to `overcommit` times the space that it has for them.
 */
export type DiskPromises = {
  /** Counts a new disk in place of an earlier one of the sandbox. Throws `StartError('disk')` if it would be too much. */
  add(sandbox: SandboxId, sizeMib: number): void
  /** Stops counting a deleted disk. An unknown sandbox is fine. */
  remove(sandbox: SandboxId): void
  /** Measures the file system again. Returns how many MiB new disks may have. */
  measureLeftMib(): Promise<number>
}

type DiskPromisesInput = {
  /** The folder with a folder for each sandbox. */
  readonly dir: string
  /** The name of the disk's file in the folder of its sandbox. */
  readonly fileName: string
  readonly reserve: Pick<DiskReserve, 'freeMib'>
  readonly overcommit: number
}

const MIB = 1024 * 1024
const STAT_BLOCK_BYTES = 512

/** Counts the existing disks. They stay usable even if they promise too much already. */
export async function openDiskPromises(input: DiskPromisesInput): Promise<DiskPromises> {
  const { dir, fileName, reserve, overcommit } = input
  const sizesMib = new Map<string, number>()
  let promisedMib = 0
  let limitMib = 0

  function remove(sandbox: string): void {
    promisedMib -= sizesMib.get(sandbox) ?? 0
    sizesMib.delete(sandbox)
  }

  function set(sandbox: string, sizeMib: number): void {
    remove(sandbox)
    sizesMib.set(sandbox, sizeMib)
    promisedMib += sizeMib
  }

  /** Measures the disks. `onDisk` gets the size of each. */
  async function measure(onDisk: (sandbox: string, sizeMib: number) => void): Promise<void> {
    let takenBytes = 0
    for (const sandbox of await readdir(dir)) {
      const found = await stat(join(dir, sandbox, fileName)).catch(ignoreMissing)
      if (found === null) continue
      takenBytes += found.blocks * STAT_BLOCK_BYTES
      onDisk(sandbox, Math.ceil(found.size / MIB))
    }
    limitMib = ((await reserve.freeMib()) + takenBytes / MIB) * overcommit
  }

  await measure(set)
  return {
    add(sandbox, sizeMib) {
      const earlierMib = sizesMib.get(sandbox) ?? 0
      if (promisedMib - earlierMib + sizeMib > limitMib) {
        throw new StartError(
          'disk',
          `a disk of ${String(sizeMib)} MiB is more than this worker has left: it promises at most ${String(Math.floor(limitMib))} MiB to all sandboxes, the stopped ones included (SANDYARD_DISK_OVERCOMMIT)`,
        )
      }
      set(sandbox, sizeMib)
    },
    remove,
    async measureLeftMib() {
      await measure(() => undefined)
      return Math.max(0, Math.floor(limitMib - promisedMib))
    },
  }
}

function ignoreMissing(error: unknown): null {
  if (hasErrorCode(error, 'ENOENT') || hasErrorCode(error, 'ENOTDIR')) return null
  throw error
}
