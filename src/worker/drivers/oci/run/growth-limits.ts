import { interruptibleSleep, type Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import type { RunId } from '../../../../domain/ids.ts'
import type { DiskReserve } from '../../../disk-reserve.ts'
import { growthShare, limitGrowth, measureDisk } from '../disk/disk-growth.ts'
import { rootfsPaths } from '../rootfs/root-mounts.ts'
import type { OciRunRecords } from './run-records.ts'

/** Limits how much the disks of running sandboxes grow. */
export type GrowthLimits = {
  /** Limits a disk that has just been mounted, by the last measurement. */
  limit(run: RunId): void
  /** Measures all disks and limits them, now and each second until `close`. */
  start(): void
  close(): Promise<void>
}

type GrowthInput = {
  readonly records: Pick<OciRunRecords, 'list'>
  readonly mountDir: string
  readonly reserve: Pick<DiskReserve, 'freeMib'>
  readonly clock: Clock
  readonly log: Log
}

const INTERVAL_MS = 1_000
const MIB = 1024 * 1024

/** Makes the limits, which do nothing until `start` or `limit`. */
export function makeGrowthLimits({ records, mountDir, reserve, clock, log }: GrowthInput): GrowthLimits {
  const closing = new AbortController()
  let shareBytes = Number.POSITIVE_INFINITY
  let running = Promise.resolve()

  async function limitAll(): Promise<void> {
    const freeMib = await reserve.freeMib()
    const disks = records
      .list()
      .filter(({ is_released }) => !is_released)
      .flatMap(({ run_id }) => measureDisk(rootfsPaths(mountDir, run_id).disk) ?? [])
    shareBytes = growthShare(freeMib * MIB, disks)
    for (const disk of disks) limitGrowth(disk, shareBytes)
  }
  async function run(): Promise<void> {
    while (!closing.signal.aborted) {
      await limitAll().catch((error: unknown) => {
        log.warn({ err: error }, 'the growth of disks could not be limited, so sandboxes can fill the file system')
      })
      await interruptibleSleep(clock, INTERVAL_MS, closing.signal)
    }
  }
  return {
    limit(run_id) {
      const disk = measureDisk(rootfsPaths(mountDir, run_id).disk)
      if (disk !== null) limitGrowth(disk, shareBytes)
    },
    start() {
      running = run()
    },
    async close() {
      closing.abort()
      await running
    },
  }
}
