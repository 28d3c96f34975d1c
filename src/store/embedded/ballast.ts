import { closeSync, openSync, rmSync, statfsSync, statSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import type { Log } from '../../lib/log.ts'
import type { Random } from '../../lib/random.ts'
import { repeat, type Repetition } from '../../lib/repeat.ts'

/**
 * A file that only takes space. When the file system is full, it is deleted, so that PostgreSQL can write again and an
 * operator can delete what fills the disk. It is made again once there is twice its size of space.
 */
export type Ballast = {
  /** Watches the file system each second until `close`, and makes the file. */
  start(): void
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
/** The file is deleted when less is free: two segments of PostgreSQL's log. */
const FULL_BELOW_MIB = 32
const INTERVAL_MS = 1_000

/** Opens the ballast of a folder. If the file system is full, deletes the file at once, so that PostgreSQL can start. */
export function openBallast({ dir, sizeMib, clock, random, log }: BallastInput): Ballast {
  const path = join(dir, 'ballast')

  function check(mayMake: boolean): void {
    const { blocks, bavail, bsize } = statfsSync(dir)
    const wantedMib = sizeMib ?? Math.min(LARGEST_DEFAULT_MIB, Math.floor((blocks * bsize * DEFAULT_SHARE) / MIB))
    const freeMib = (bavail * bsize) / MIB
    const hasFile = statSync(path, { throwIfNoEntry: false }) !== undefined
    if (hasFile && (wantedMib === 0 || freeMib < FULL_BELOW_MIB)) {
      rmSync(path)
      if (wantedMib > 0)
        log.error(
          { folder: dir, free_mib: Math.floor(freeMib), freed_mib: wantedMib },
          "the data folder's file system is full: freed the ballast, so that sandboxes can be deleted; delete some, or give it more space",
        )
    } else if (!hasFile && mayMake && wantedMib > 0 && freeMib > 2 * wantedMib + FULL_BELOW_MIB) {
      writeBallast(path, { sizeMib: wantedMib, random })
    }
  }
  check(false)
  let watch: Repetition | null = null
  return {
    start() {
      const onFailure = (error: unknown): void => {
        log.warn({ err: error, path }, 'the ballast could not be made or freed')
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
