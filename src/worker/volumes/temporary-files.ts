import { unlink, type FileHandle } from 'node:fs/promises'
import { runCommand, tryCommand } from '../../lib/run-command.ts'
import type { Random } from '../../lib/random.ts'
import { descriptorPath } from './descriptors.ts'
import { hasErrorCode } from './file-errors.ts'

/**
 * What is written before it takes its place. It lies in the volume, so that taking its place is a rename and its bytes
 * count against the cap. Clients neither see nor reach such names; a killed worker leaves them for `deleteStaleTemporaries`.
 */
const PREFIX = '.sandyard-unfinished-'
const RANDOM_BYTES = 16
/** The longest that deleting may take; a million files take about 10 s (coreutils on ext4, 2026-11). */
const DELETE_TIMEOUT_MS = 600_000
const MS_PER_MINUTE = 60_000

/** A name that nobody has and nobody can guess. */
export function newTemporaryName(random: Random): string {
  return `${PREFIX}${random.bytes(RANDOM_BYTES).toString('hex')}`
}

/** Whether a name is kept for what is not finished. */
export function isTemporaryName(name: string): boolean {
  return name.startsWith(PREFIX)
}

/** Deletes what is under a name, whatever it is; nothing there is no error. */
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
 * Deletes a folder and all in it, as deep as it is; false when part of it could not be deleted. `rm` goes from the folder
 * that is held, step by step without following: what a sandbox changes meanwhile can't lead it out.
 */
export async function deleteTree(folder: FileHandle, name: string): Promise<boolean> {
  const result = await tryCommand('rm', ['-rf', '--one-file-system', '--', `./${name}`], {
    timeoutMs: DELETE_TIMEOUT_MS,
    cwd: String(descriptorPath(folder)),
  })
  return result.code === 0
}

/**
 * Deletes what killed workers left unfinished in the volume at `root`: what was not written to for `olderThanMs`. With 0
 * nothing may be under way in it. It never follows a symlink and may be repeated.
 */
export async function deleteStaleTemporaries(root: string, olderThanMs: number): Promise<void> {
  const age = olderThanMs === 0 ? [] : ['-mmin', `+${String(olderThanMs / MS_PER_MINUTE)}`]
  const hex = '[0-9a-f]'.repeat(RANDOM_BYTES * 2)
  const names = ['-name', `${PREFIX}${hex}`, ...age, '-prune']
  await runCommand('find', ['.', '-xdev', ...names, '-execdir', 'rm', '-rf', '--one-file-system', '--', '{}', '+'], {
    timeoutMs: DELETE_TIMEOUT_MS,
    cwd: root,
  })
}
