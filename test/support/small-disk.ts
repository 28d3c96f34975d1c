import { execFileSync, spawnSync } from 'node:child_process'
import { closeSync, fstatSync, mkdtempSync, openSync, rmSync, statfsSync, statSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { hasErrorCode } from '../../src/lib/error-code.ts'

/** A small ext4 file system in a file. Syncs reach this machine's disk. */
export type SmallDisk = {
  readonly folder: string
  /** Fills the space that is free now, not what others free meanwhile. Returns the number of written bytes. May be repeated. */
  fill(): number
  /** Frees the space that `fill` has filled. */
  free(): void
  /** Unmounts and deletes the file system. Close its files first, because an open file prevents unmounting. */
  remove(): void
}

/** What is written instead of allocated, because the file system needs some blocks for itself. */
const LEFT_TO_WRITE_BYTES = 2 * 1024 * 1024
const BALLAST_STEPS_BYTES = [1024 * 1024, 4096] as const

/** Why no file system can be made here, or false when one can. For `{ skip }`. */
export function whyNoSmallDisk(): string | false {
  try {
    mountSmallDisk(16).remove()
    return false
  } catch (error) {
    return `no file system in a file can be mounted here: ${error instanceof Error ? error.message : String(error)}`
  }
}

/** Makes and mounts a file system. Always `remove` it. */
export function mountSmallDisk(sizeMib: number): SmallDisk {
  const dir = mkdtempSync('/tmp/sandyard-small-')
  const [image, folder] = [join(dir, 'image'), join(dir, 'mounted')]
  try {
    execFileSync('chmod', ['711', dir])
    execFileSync('truncate', ['-s', `${String(sizeMib)}M`, image])
    execFileSync('mkfs.ext4', ['-q', '-m', '0', image], { stdio: ['ignore', 'ignore', 'pipe'] })
    execFileSync('mkdir', [folder])
    execFileSync('mount', ['-o', 'loop', image, folder], { stdio: ['ignore', 'ignore', 'pipe'] })
  } catch (error) {
    rmSync(dir, { recursive: true, force: true })
    throw error
  }
  const ballast = join(folder, 'ballast')
  return {
    folder,
    fill() {
      // A server frees its own ballast when the disk gets full. To fill that too would leave nobody any space.
      const { bavail, bsize } = statfsSync(folder)
      const sizeBefore = statSync(ballast, { throwIfNoEntry: false })?.size ?? 0
      const endBytes = sizeBefore + bavail * bsize
      const quickly = Math.max(0, bavail * bsize - LEFT_TO_WRITE_BYTES)
      if (quickly > 0) {
        const args = ['-o', String(sizeBefore), '-l', String(quickly), ballast]
        spawnSync('fallocate', args, { stdio: 'ignore' }) // it fails if others take space meanwhile
      }
      const file = openSync(ballast, 'a')
      try {
        for (const step of BALLAST_STEPS_BYTES) writeUntil(file, { step, endBytes })
        return fstatSync(file).size - sizeBefore
      } finally {
        closeSync(file)
      }
    },
    free() {
      rmSync(ballast, { force: true })
    },
    remove() {
      execFileSync('umount', [folder])
      rmSync(dir, { recursive: true, force: true })
    },
  }
}

/** Appends to a file until another step would make it larger than `endBytes`, or the disk is full. */
function writeUntil(file: number, { step, endBytes }: { readonly step: number; readonly endBytes: number }): void {
  const bytes = Buffer.alloc(step)
  try {
    for (let { size } = fstatSync(file); size + step <= endBytes;) size += writeSync(file, bytes)
  } catch (error) {
    if (!hasErrorCode(error, 'ENOSPC')) throw error
  }
}
