import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { SandboxId } from '../../../../domain/ids.ts'
import type { Clock } from '../../../../lib/clock.ts'
import { statOrNull, takenBytes } from '../../../../lib/files.ts'
import { limitOfDisksMib, type DiskReserve } from '../../../disk-reserve.ts'
import { StartError } from '../../../start-error.ts'

/**
 * The sizes of all disks, those of stopped sandboxes included. Disks are sparse, so together they may promise more than
 * the file system has: up to `overcommit` times the space that it has for them.
 */
export type DiskPromises = {
  /**
   * Counts a new disk in place of an earlier one of the sandbox. If it is too much, waits a few seconds for disks of
   * deleted sandboxes to go: the control plane gives their capacity away at once. Then rejects with `StartError('disk')`.
   */
  add(sandbox: SandboxId, sizeMib: number): Promise<void>
  /** Stops counting a deleted disk. An unknown sandbox is fine. */
  remove(sandbox: SandboxId): void
  /** Measures the file system again. Returns how many MiB all disks together may have. */
  measureLimitMib(): Promise<number>
}

type DiskPromisesInput = {
  /** The folder with a folder for each sandbox. */
  readonly dir: string
  /** The name of the disk's file in the folder of its sandbox. */
  readonly fileName: string
  readonly reserve: Pick<DiskReserve, 'freeMib'>
  readonly overcommit: number
  readonly clock: Pick<Clock, 'monotonicMs' | 'sleep'>
}

const MIB = 1024 * 1024
/** A deletion reaches the worker within two syncs. */
const REMOVALS_LIMIT_MS = 3_000
const REMOVALS_POLL_MS = 200

/** Counts the existing disks. They stay usable even if they promise too much already. */
export async function openDiskPromises(input: DiskPromisesInput): Promise<DiskPromises> {
  const { dir, fileName, clock } = input
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
    let taken = 0
    for (const sandbox of await readdir(dir)) {
      const found = await statOrNull(join(dir, sandbox, fileName))
      if (found === null) continue
      taken += takenBytes(found)
      onDisk(sandbox, Math.ceil(found.size / MIB))
    }
    limitMib = await limitOfDisksMib(taken, input)
  }

  await measure(set)
  return {
    async add(sandbox, sizeMib) {
      const isTooMuch = (): boolean => promisedMib - (sizesMib.get(sandbox) ?? 0) + sizeMib > limitMib
      const deadlineMs = clock.monotonicMs() + REMOVALS_LIMIT_MS
      while (isTooMuch() && clock.monotonicMs() < deadlineMs) {
        await measure(() => undefined)
        if (isTooMuch()) await clock.sleep(REMOVALS_POLL_MS)
      }
      if (isTooMuch()) {
        throw new StartError(
          'disk',
          `a disk of ${String(sizeMib)} MiB is more than this worker has left: it promises at most ${String(Math.floor(limitMib))} MiB to all sandboxes, the stopped ones included (SANDYARD_DISK_OVERCOMMIT)`,
        )
      }
      set(sandbox, sizeMib)
    },
    remove,
    async measureLimitMib() {
      await measure(() => undefined)
      return limitMib
    },
  }
}
