import { statfsSync } from 'node:fs'
import { diskPressureOf, type DiskPressure, type WorkerDisk } from '../domain/workers/disk-pressure.ts'
import { StartError } from './start-error.ts'

/**
 * The space of the worker's file system that only the control plane may use. PostgreSQL often lies on the same file
 * system and stops when it is full. Work for tenants is refused before that.
 */
export type DiskReserve = {
  /** How many MiB are free beyond the reserve. 0 if space or inodes are short. */
  freeMib(): Promise<number>
  /** Whether nothing is free beyond the reserve. */
  isShort(): Promise<boolean>
  /** Throws `StartError('disk')` if nothing is free beyond the reserve. `what` is the subject of the message. */
  require(what: string): Promise<void>
  /** Throws `StartError('disk')` if half of the reserve is gone. `what` is the subject of the message. */
  requireNotCritical(what: string): Promise<void>
  /** Measures the file system. `before` is the last level. Null: there is no reserve, and nothing is watched. */
  measure(before: DiskPressure): Promise<WorkerDisk | null>
}

const MIB = 1024 * 1024
/** The reserved share of inodes. A file system without inodes is as full as one without space. */
const INODES_SHARE = 0.05

const LARGEST_DEFAULT_MIB = 2048
const DEFAULT_SHARE = 0.05

/**
 * Makes the reserve of the file system that holds `dir`. A reserve of 0 MiB never refuses anything. Null: 5 % of the file
 * system, at most 2 GiB.
 */
export function makeDiskReserve(dir: string, setMib: number | null): DiskReserve {
  /** On this thread: the kernel has the numbers in memory. Each start measures twice, and a switch of threads takes longer. */
  function measure(): Measured {
    const { blocks, bavail, bsize, files, ffree } = statfsSync(dir)
    const totalMib = Math.floor((blocks * bsize) / MIB)
    const freeMib = Math.floor((bavail * bsize) / MIB)
    const reserveMib = setMib ?? Math.min(LARGEST_DEFAULT_MIB, Math.ceil(totalMib * DEFAULT_SHARE))
    // Some file systems, such as btrfs, make inodes as needed and report 0 for their number.
    const ofInodes = files > 0 ? ffree / (files * INODES_SHARE) : Infinity
    return { totalMib, freeMib, reserveMib, reserves: Math.min(freeMib / reserveMib, ofInodes) }
  }
  /** How many MiB are free beyond the reserve. */
  const beyondMib = ({ freeMib, reserveMib, reserves }: Measured): number =>
    reserveMib > 0 && reserves <= 1 ? 0 : Math.max(0, freeMib - reserveMib)
  const isShort = (): boolean => setMib !== 0 && beyondMib(measure()) === 0
  const refusal = (what: string, { reserveMib, freeMib }: Measured): StartError =>
    new StartError(
      'disk',
      `${what}: the worker's disk is full up to the reserve of the control plane (${String(reserveMib)} MiB, SANDYARD_DISK_RESERVE_MIB), and ${String(freeMib)} MiB are free; try again later, or delete sandboxes or files of volumes`,
    )
  return {
    freeMib: async () => beyondMib(measure()),
    isShort: async () => isShort(),
    async require(what) {
      if (isShort()) throw refusal(what, measure())
    },
    async requireNotCritical(what) {
      const measured = measure()
      if (setMib !== 0 && diskPressureOf(measured.reserves, 'none') === 'critical') throw refusal(what, measured)
    },
    async measure(before) {
      if (setMib === 0) return null
      const { totalMib, freeMib, reserveMib, reserves } = measure()
      const pressure = diskPressureOf(reserves, before)
      return { total_mib: totalMib, free_mib: freeMib, reserve_mib: reserveMib, pressure }
    },
  }
}

type Measured = {
  readonly totalMib: number
  readonly freeMib: number
  readonly reserveMib: number
  /** The free space as a multiple of the reserve. If inodes are scarcer, their number as a multiple of their reserve. */
  readonly reserves: number
}

/**
 * Returns how many MiB all disks of sandboxes may have together. What they take already counts as space for them, so the
 * limit stays the same while sandboxes write.
 */
export async function limitOfDisksMib(
  takenBytes: number,
  { reserve, overcommit }: { readonly reserve: Pick<DiskReserve, 'freeMib'>; readonly overcommit: number },
): Promise<number> {
  return ((await reserve.freeMib()) + takenBytes / MIB) * overcommit
}

/** A reserve that refuses nothing. */
export const NO_DISK_RESERVE: DiskReserve = {
  freeMib: () => Promise.resolve(Number.POSITIVE_INFINITY),
  isShort: () => Promise.resolve(false),
  require: () => Promise.resolve(),
  requireNotCritical: () => Promise.resolve(),
  measure: () => Promise.resolve(null),
}
