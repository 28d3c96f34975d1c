import { readFileSync, readlinkSync, statfsSync, statSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { hasErrorCode } from '../../../../lib/error-code.ts'
import { takenBytes } from '../../../../lib/files.ts'
import { deviceName } from '../../../processes/mountinfo.ts'

/**
 * The disks of sandboxes are sparse files, which together may promise more than the file system below them has. If that
 * file system filled up, the kernel would lose data that a sandbox has written already, and PostgreSQL would stop.
 * Therefore each disk may grow only by its share of what is free. Beyond it, the sandbox's writes fail with ENOSPC.
 *
 * The kernel's `reserved_clusters` of an ext4 file system (Documentation/ABI/testing/sysfs-fs-ext4) are clusters that not
 * even root may allocate. Reserving all free clusters but a share limits the growth.
 */

/** The use of a mounted disk in bytes. */
export type DiskUse = {
  /** What the disk's own file system has free, and what it has allocated. */
  readonly freeBytes: number
  readonly allocatedBytes: number
  /** What the disk's file takes of the file system below. */
  readonly takenBytes: number
}

/**
 * No machine writes more than this between two measurements. Of the space beyond it, each disk may therefore take a
 * quarter, so that one large write succeeds although many disks share the space.
 */
const LARGEST_BURST_BYTES = 8 * 1024 ** 3
const SHARE_BEYOND_BURST = 0.25

/** How many bytes disks may grow by until the next measurement. */
export type GrowthShares = {
  /** The equal share of each measured disk. All disks that are mounted until the next measurement have one together. */
  readonly equalBytes: number
  /** What any disk may take in addition to the shares of the others. */
  readonly burstBytes: number
}

/**
 * Divides what the file system below has free among the disks. A disk may have allocated more than its file takes, for
 * example by `fallocate`. That is promised already.
 */
export function growthShares(freeBytes: number, disks: readonly DiskUse[]): GrowthShares {
  const owedBytes = disks.reduce(
    (sum, { allocatedBytes, takenBytes }) => sum + Math.max(0, allocatedBytes - takenBytes),
    0,
  )
  const spareBytes = Math.max(0, freeBytes - owedBytes)
  return {
    equalBytes: spareBytes / (disks.length + 1),
    burstBytes: Math.max(0, spareBytes - LARGEST_BURST_BYTES) * SHARE_BEYOND_BURST,
  }
}

/** When the disks were measured last, how many, and what the file system below had free then. */
export type DiskMeasurement = { readonly atMs: number; readonly freeBytes: number; readonly disks: number }

/**
 * All disks are measured after this time for each of them, although about as much is free: one may have promised its
 * share without writing.
 */
const MEASURED_FOR_MS_FOR_EACH_DISK = 20
/** What is free may change by this part of the limit of a disk before all disks are measured again. */
const TOLERATED = 0.25

/**
 * Whether the disks must be measured again. While about as much is free as at the last measurement, none has written much of the
 * `limitBytes` by which it may grow. To measure a disk takes 56 us (2026-11).
 */
export function isMeasurementDue(last: DiskMeasurement, now: DiskMeasurement, limitBytes: number): boolean {
  return (
    now.disks !== last.disks ||
    Math.abs(now.freeBytes - last.freeBytes) > limitBytes * TOLERATED ||
    now.atMs - last.atMs >= now.disks * MEASURED_FOR_MS_FOR_EACH_DISK
  )
}

/** A mounted disk whose growth can be limited. */
export type MeasuredDisk = DiskUse & {
  readonly clusterBytes: number
  readonly clusters: number
  /** The file of the kernel's `reserved_clusters`. */
  readonly reservedFile: string
}

/**
 * Measures the disk that is mounted at `mountPoint`. Returns null if nothing is mounted there any more. Runs on this
 * thread: it takes 25 us, and a thread of the pool would take more.
 */
export function measureDisk(mountPoint: string): MeasuredDisk | null {
  try {
    const device = basename(readlinkSync(join('/sys/dev/block', deviceName(statSync(mountPoint).dev))))
    const { blocks, bfree, bsize } = statfsSync(mountPoint)
    const file = statSync(readFileSync(join('/sys/block', device, 'loop/backing_file'), 'utf8').trimEnd())
    return {
      freeBytes: bfree * bsize,
      allocatedBytes: (blocks - bfree) * bsize,
      takenBytes: takenBytes(file),
      clusterBytes: bsize,
      clusters: blocks,
      reservedFile: join('/sys/fs/ext4', device, 'reserved_clusters'),
    }
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT', 'ENOTDIR')) return null
    throw error
  }
}

/** Lets the disk allocate at most `shareBytes` more. A disk that was unmounted meanwhile is fine. */
export function limitGrowth(disk: MeasuredDisk, shareBytes: number): void {
  const { freeBytes, clusterBytes, clusters, reservedFile } = disk
  const heldClusters = Math.ceil(Math.max(0, freeBytes - shareBytes) / clusterBytes)
  const reserved = Math.min(Math.max(kernelsOwnReserve(clusters), heldClusters), clusters - 1)
  try {
    writeFileSync(reservedFile, String(reserved), { flag: 'r+' })
  } catch (error) {
    if (!hasErrorCode(error, 'ENOENT')) throw error
  }
}

/** What the kernel reserves when it mounts an ext4 file system: 2 %, at most 4,096 clusters (fs/ext4/super.c). */
function kernelsOwnReserve(clusters: number): number {
  return Math.min(Math.floor(clusters / 50), 4_096)
}
