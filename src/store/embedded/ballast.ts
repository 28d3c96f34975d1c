import { closeSync, existsSync, openSync, rmSync, statfsSync, statSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import type { Log } from '../../lib/log.ts'
import type { Random } from '../../lib/random.ts'
import { repeat, type Repetition } from '../../lib/turns/repeat.ts'
import { FULL_BELOW_MIB, freeMibOf } from './full-disk.ts'

/**
 * A file that only takes space. When the file system is full, it is deleted, so that PostgreSQL can write again and an
 * operator can delete what fills the disk. It is made again once there is twice its size of space.
 */
export type Ballast = {
  /** Watches the file system each second until `close`, and makes the file. */
  start(): void
  /** Whether the file system is full: the file was freed and can't be made again, or little more than nothing is free. */
  isFull(): boolean
  /** Ends the watch. The file stays. */
  close(): Promise<void>
}

type BallastInput = {
  readonly dir: string
  /** The size of the file. 0: no file. Null: 1 % of the file system, at most 256 MiB. */
  readonly sizeMib: number | null
  readonly clock: Clock
  readonly random: Random
  readonly log: Log
}

const MIB = 1024 * 1024
const LARGEST_DEFAULT_MIB = 256
const DEFAULT_SHARE = 0.01
const INTERVAL_MS = 1_000

/**
 * Deletes the ballast of a folder if the file system is full, so that this process can lock the folder. Another process
 * that uses the folder would delete it at the same time.
 */
export function freeBallastIfFull({ dir, log }: Pick<BallastInput, 'dir' | 'log'>): void {
  const path = join(dir, 'ballast')
  const file = statSync(path, { throwIfNoEntry: false })
  const freeMib = freeMibOf(dir)
  if (file === undefined || freeMib >= FULL_BELOW_MIB) return
  rmSync(path)
  log.error(
    { folder: dir, free_mib: Math.floor(freeMib), freed_mib: Math.floor(file.size / MIB) },
    "the data folder's file system is full: freed the ballast, so that sandboxes can be deleted; delete some, or give it more space",
  )
}

/** Opens the ballast of a folder. If the file system is full, deletes the file at once, so that PostgreSQL can start. */
export function openBallast({ dir, sizeMib, clock, random, log }: BallastInput): Ballast {
  const path = join(dir, 'ballast')

  function check(mayMake: boolean): void {
    const { blocks, bavail, bsize } = statfsSync(dir)
    const wantedMib = sizeMib ?? Math.min(LARGEST_DEFAULT_MIB, Math.floor((blocks * bsize * DEFAULT_SHARE) / MIB))
    const freeMib = (bavail * bsize) / MIB
    const hasFile = existsSync(path)
    const hasSpace = freeMib > (wantedMib > 0 && !hasFile ? 2 * wantedMib : 0) + FULL_BELOW_MIB
    if (hasFile && wantedMib === 0) rmSync(path)
    else if (hasFile && !hasSpace) freeBallastIfFull({ dir, log })
    else if (!hasFile && mayMake && wantedMib > 0 && hasSpace) writeBallast(path, { sizeMib: wantedMib, random })
    isFull = !hasSpace
  }
  let isFull = false
  check(false)
  let watch: Repetition | null = null
  return {
    isFull: () => isFull,
    start() {
      const onFailure = (error: unknown): void => {
        log.warn({ error, path }, 'the ballast could not be made or freed')
      }
      watch = repeat(
        () => {
          check(true)
        },
        { pauseMs: INTERVAL_MS, clock, onFailure },
      )
    },
    close: async () => watch?.close(),
  }
}

/** Writes random bytes, which a file system that compresses can't make smaller. A full file system leaves no file. */
function writeBallast(path: string, { sizeMib, random }: { readonly sizeMib: number; readonly random: Random }): void {
  const bytes = random.bytes(MIB)
  const file = openSync(path, 'wx', 0o600)
  try {
    for (let written = 0; written < sizeMib; written++) writeSync(file, bytes)
  } catch (error) {
    rmSync(path)
    if (!hasErrorCode(error, 'ENOSPC')) throw error
  } finally {
    closeSync(file)
  }
}
