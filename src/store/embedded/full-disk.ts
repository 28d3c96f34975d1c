import { statfsSync } from 'node:fs'

const MIB = 1024 * 1024
/** The file system of the database is full when less is free: two segments of PostgreSQL's log. */
export const FULL_BELOW_MIB = 32

/** How many MiB are free on the file system with a folder. */
export function freeMibOf(dir: string): number {
  const { bavail, bsize } = statfsSync(dir)
  return (bavail * bsize) / MIB
}

/** Returns an error that names the remedy if a folder's file system is full, and otherwise the error itself. */
export function explainFullDisk(error: unknown, dir: string): unknown {
  const freeMib = freeMibOf(dir)
  const message = error instanceof Error ? error.message : String(error)
  if (freeMib >= FULL_BELOW_MIB && !/no space left on device/i.test(message)) return error
  return new Error(
    `the file system with the data folder is full (${String(Math.floor(freeMib))} MiB are free): delete other files on it, ` +
      'or enlarge it, until 100 MiB are free; then start again and delete sandboxes',
    { cause: error },
  )
}
