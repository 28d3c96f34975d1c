/** How short the disk of a worker is, and which of its runs must stop because of that. */
import type { RunId } from '../ids.ts'

/**
 * `low`: a warning. `short`: the reserve is reached, and the worker refuses pulls and new disks. `critical`: half of the
 * reserve is gone, and the worker starts nothing and stops the runs whose files grow.
 */
export const DISK_PRESSURES = ['none', 'low', 'short', 'critical'] as const
export type DiskPressure = (typeof DISK_PRESSURES)[number]

/** The file system with a worker's data folder. */
export type WorkerDisk = {
  readonly total_mib: number
  readonly free_mib: number
  /** The free space that sandboxes leave to the control plane. */
  readonly reserve_mib: number
  readonly pressure: DiskPressure
}

/** A level begins when the free space is at most this many times the reserve. */
const WATERMARKS = { critical: 0.5, short: 1, low: 2 } as const
/** A level ends when the free space is beyond its watermark by this share of the reserve, so that it doesn't flap. */
const HYSTERESIS = 0.1

/**
 * Returns the level for free space that is `reserves` times the reserve. `before` is the level so far. A reserve of 0 has
 * no levels: pass `Infinity`.
 */
export function diskPressureOf(reserves: number, before: DiskPressure): DiskPressure {
  const beforeRank = DISK_PRESSURES.indexOf(before)
  for (const level of ['critical', 'short', 'low'] as const) {
    const isHeld = beforeRank >= DISK_PRESSURES.indexOf(level)
    if (reserves <= WATERMARKS[level] + (isHeld ? HYSTERESIS : 0)) return level
  }
  return 'none'
}

/** Whether a level is at least another. */
export function isPressureAtLeast(level: DiskPressure, other: DiskPressure): boolean {
  return DISK_PRESSURES.indexOf(level) >= DISK_PRESSURES.indexOf(other)
}

/** A running sandbox's files on the worker: its disk, and the volumes that it mounts. */
export type DiskWriter = {
  readonly run_id: RunId
  readonly takenBytes: number
  /** How much the files grew lately. */
  readonly grewBytes: number
}

/** A run that grew by less doesn't fill a disk. It must not pay for others. */
const LEAST_GROWTH_BYTES = 1024 * 1024

/**
 * Returns the run to stop while the pressure is critical: the one whose files grew most, and of equal ones the one with
 * the most. Null if none grew: stopping a run frees no space.
 */
export function chooseRunToStop(writers: readonly DiskWriter[]): RunId | null {
  const growing = writers.filter(({ grewBytes }) => grewBytes >= LEAST_GROWTH_BYTES)
  const [largest] = growing.toSorted((a, b) => b.grewBytes - a.grewBytes || b.takenBytes - a.takenBytes)
  return largest?.run_id ?? null
}

/** `roundMib` has this many steps in each doubling. */
const STEPS = 64

/** Rounds a size down, so that a report stays the same while logs and images change the free space a little. */
export function roundMib(mib: number): number {
  const step = Math.max(1, 2 ** Math.floor(Math.log2(Math.max(1, mib))) / STEPS)
  return Math.floor(Math.floor(mib / step) * step)
}
