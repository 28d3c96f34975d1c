import { unlink, type FileHandle } from 'node:fs/promises'
import { hasErrorCode } from '../../lib/error-code.ts'
import { runCommand, tryCommand } from '../../lib/run-command.ts'
import type { Random } from '../../lib/random.ts'
import { descriptorPath } from './descriptors.ts'

/**
 * The prefix of the names of unfinished files. These files are in the volume itself. A rename is therefore enough to
 * publish them, and their content counts against the cap. Clients can't see or use these names.
 * `deleteStaleTemporaries` deletes the unfinished files of killed workers.
 */
const PREFIX = '.sandyard-unfinished-'
const RANDOM_BYTES = 16
/** The time limit for a deletion. A million files take about 10 s (coreutils on ext4, 2026-11). */
const DELETE_TIMEOUT_MS = 600_000
const MS_PER_MINUTE = 60_000

/** Returns a new name that can't be guessed. */
export function newTemporaryName(random: Random): string {
  return `${PREFIX}${random.bytes(RANDOM_BYTES).toString('hex')}`
}

/** Returns the name of the unfinished replacement of an inode. */
export function temporaryNameOf(inode: bigint): string {
  return `${PREFIX}${inode.toString(16).padStart(RANDOM_BYTES * 2, '0')}`
}

/** Whether a name is reserved for unfinished files. */
export function isTemporaryName(name: string): boolean {
  return name.startsWith(PREFIX)
}

/** Deletes a temporary file or folder, if it exists. */
export async function deleteTemporary(folder: FileHandle, name: string): Promise<void> {
  try {
    await unlink(descriptorPath(folder, name))
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return
    if (!hasErrorCode(error, 'EISDIR', 'EPERM')) throw error
    await deleteTree(folder, name)
  }
}

/**
 * Deletes a folder of any depth with everything in it. Returns false when part of it could not be deleted. Runs `rm`,
 * which starts at the open folder and follows no symlinks, so a sandbox can't redirect it.
 */
export async function deleteTree(folder: FileHandle, name: string): Promise<boolean> {
  const result = await tryCommand('rm', ['-rf', '--', `./${name}`], {
    timeoutMs: DELETE_TIMEOUT_MS,
    cwd: String(descriptorPath(folder)),
  })
  return result.code === 0
}

/**
 * Deletes unfinished files of killed workers in the volume at `root`, if they were not written to for `olderThanMs`.
 * Pass 0 only while no write is in progress. Follows no symlinks. May be repeated.
 */
export async function deleteStaleTemporaries(root: string, olderThanMs: number): Promise<void> {
  const age = olderThanMs === 0 ? [] : ['-mmin', `+${String(olderThanMs / MS_PER_MINUTE)}`]
  const hex = '[0-9a-f]'.repeat(RANDOM_BYTES * 2)
  const names = ['-name', `${PREFIX}${hex}`, ...age, '-prune']
  await runCommand('find', ['.', ...names, '-execdir', 'rm', '-rf', '--', '{}', '+'], {
    timeoutMs: DELETE_TIMEOUT_MS,
    cwd: root,
  })
}
