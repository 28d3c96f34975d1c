import type { Clock } from '../../../../../lib/clock.ts'
import type { Log } from '../../../../../lib/log.ts'
import { repeat, type Repetition } from '../../../../../lib/turns/repeat.ts'
import type { RunId } from '../../../../../domain/ids.ts'
import type { DiskReserve } from '../../../../disk-reserve.ts'
import {
  growthShares,
  isMeasurementDue,
  limitGrowth,
  measureDisk,
  type DiskMeasurement,
  type MeasuredDisk,
} from '../../disk/disk-growth.ts'
import type { VolumeStorage } from '../../../../volumes/volume-storage.ts'
import { rootfsPaths } from '../../rootfs/root-mounts.ts'
import { containerIdOf, type OciRunRecords } from '../run-records.ts'

/** Limits how much the disks of running sandboxes grow. */
export type GrowthLimits = {
  /** Limits the disk of a container that is about to start. */
  limit(container: RunId): void
  /** Measures the disks of all started runs and limits them, now and whenever a measurement is due, until `close`. */
  start(): void
  close(): Promise<void>
}

type GrowthInput = {
  readonly records: Pick<OciRunRecords, 'list'>
  readonly mountDir: string
  readonly reserve: Pick<DiskReserve, 'freeMib'>
  readonly volumes: Pick<VolumeStorage, 'promisedBytes'>
  readonly clock: Clock
  readonly log: Log
}

/** How often it is decided whether to measure: one `statfs`. */
const INTERVAL_MS = 1_000
const MIB = 1024 * 1024
/** A disk may always grow by this until it is first measured, so that a start doesn't fail. */
const FIRST_GROWTH_BYTES = MIB

/** Makes the limits, which do nothing until `start` or `limit`. */
export function makeGrowthLimits({ records, mountDir, reserve, volumes, clock, log }: GrowthInput): GrowthLimits {
  /** What the disks that are mounted until the next measurement may still take together. */
  let newcomersBytes = 0
  let burstBytes = 0
  let measured: DiskMeasurement | null = null
  let repetition: Repetition | null = null

  const measure = (container: RunId): readonly MeasuredDisk[] => {
    const disk = measureDisk(rootfsPaths(mountDir, container).disk)
    return disk === null ? [] : [disk]
  }
  async function limitAll(): Promise<void> {
    const freeBytes = Math.max(0, (await reserve.freeMib()) * MIB - volumes.promisedBytes())
    const runs = records.list().filter(({ is_released, started }) => !is_released && started !== null)
    const now = { atMs: clock.monotonicMs(), freeBytes, disks: runs.length }
    if (measured !== null && !isMeasurementDue(measured, now, Math.max(newcomersBytes, burstBytes))) return
    const disks = runs.flatMap((record) => measure(containerIdOf(record)))
    const shares = growthShares(freeBytes, disks)
    newcomersBytes = shares.equalBytes
    burstBytes = shares.burstBytes
    for (const disk of disks) limitGrowth(disk, Math.max(shares.equalBytes, burstBytes))
    measured = now
  }
  return {
    limit(container) {
      measured = null // this disk is to get its full share soon
      newcomersBytes /= 2 // one half for this disk, the other for the next ones
      for (const disk of measure(container)) limitGrowth(disk, Math.max(newcomersBytes, burstBytes, FIRST_GROWTH_BYTES))
    },
    start() {
      repetition = repeat(limitAll, {
        pauseMs: INTERVAL_MS,
        clock,
        onFailure: (error) => {
          log.warn({ error }, 'the growth of disks could not be limited, so sandboxes can fill the file system')
        },
      })
    },
    close: async () => repetition?.close(),
  }
}
