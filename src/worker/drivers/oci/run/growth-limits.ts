import { interruptibleSleep, type Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import type { RunId } from '../../../../domain/ids.ts'
import type { DiskReserve } from '../../../disk-reserve.ts'
import { growthShare, limitGrowth, measureDisk, type MeasuredDisk } from '../disk/disk-growth.ts'
import { rootfsPaths } from '../rootfs/root-mounts.ts'
import type { OciRunRecords } from './run-records.ts'

/** Limits how much the disks of running sandboxes grow. */
export type GrowthLimits = {
  /** Limits the disk of a run that is about to start. */
  limit(run: RunId): Promise<void>
  /** Measures the disks of all started runs and limits them, now and each second until `close`. */
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
  /** The disks of started runs, as they were measured last. */
  let measured: readonly MeasuredDisk[] = []
  let running = Promise.resolve()

  const measure = (run: RunId): readonly MeasuredDisk[] => {
    const disk = measureDisk(rootfsPaths(mountDir, run).disk)
    return disk === null ? [] : [disk]
  }
  async function limitThese(disks: readonly MeasuredDisk[], others: readonly MeasuredDisk[]): Promise<void> {
    const shareBytes = growthShare((await reserve.freeMib()) * MIB, [...disks, ...others])
    for (const disk of disks) limitGrowth(disk, shareBytes)
  }
  async function limitAll(): Promise<void> {
    const runs = records.list().filter(({ is_released, started }) => !is_released && started !== null)
    measured = runs.flatMap(({ run_id }) => measure(run_id))
    await limitThese(measured, [])
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
    limit: (run_id) => limitThese(measure(run_id), measured),
    start() {
      running = run()
    },
    async close() {
      closing.abort()
      await running
    },
  }
}
