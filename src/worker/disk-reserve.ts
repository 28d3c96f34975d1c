import { statfs } from 'node:fs/promises'
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
  async function measure(): Promise<{ readonly freeMib: number; readonly reserveMib: number }> {
    const { blocks, bavail, bsize, files, ffree } = await statfs(dir)
    const fallbackMib = Math.min(LARGEST_DEFAULT_MIB, Math.ceil(((blocks * bsize) / MIB) * DEFAULT_SHARE))
    const reserveMib = setMib ?? fallbackMib
    // Some file systems, such as btrfs, make inodes as needed and report 0 for their number.
    if (reserveMib > 0 && files > 0 && ffree < files * INODES_SHARE) return { freeMib: 0, reserveMib }
    return { freeMib: Math.max(0, Math.floor((bavail * bsize) / MIB) - reserveMib), reserveMib }
  }
  const isShort = async (): Promise<boolean> => setMib !== 0 && (await measure()).freeMib === 0
  return {
    freeMib: async () => (await measure()).freeMib,
    isShort,
    async require(what) {
      if (!(await isShort())) return
      const { reserveMib } = await measure()
      throw new StartError(
        'disk',
        `${what}: the worker's disk is full up to the reserve of the control plane (${String(reserveMib)} MiB, SANDYARD_DISK_RESERVE_MIB); try again later`,
      )
    },
  }
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
}
