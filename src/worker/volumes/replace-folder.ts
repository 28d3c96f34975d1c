import { realpath, type FileHandle } from 'node:fs/promises'
import { runCommand } from '../../lib/run-command.ts'
import { findMountsAround } from '../processes/mountinfo.ts'
import type { Btrfs } from './btrfs-commands.ts'
import { descriptorPath, pathOfWorker } from './descriptors.ts'
import { conflictError } from './file-errors.ts'
import type { OpenEntry } from './resolve-beneath.ts'
import { ROOT_INODE } from './subvolume-tree.ts'
import { deleteTemporary, temporaryNameOf } from './temporary-files.ts'

/** The time limit to copy a folder without its blocks. 100,000 small files take 5 s (2026-11). */
const COPY_TIMEOUT_MS = 300_000

type Replaced = {
  /** The folder above, in the volume's own subvolume. */
  readonly folder: FileHandle
  readonly name: string
  readonly found: OpenEntry
  /** The path as the client wrote it. */
  readonly path: string
  /** The volume's folder on this machine. */
  readonly root: string
}

/**
 * Replaces a folder by a subvolume with the same content, which shares the blocks. Rejects if a sandbox has mounted the folder, part
 * of it or a folder around it: what it wrote meanwhile would be lost. The API must not change the volume meanwhile.
 */
export async function replaceBySubvolume(
  btrfs: Btrfs,
  groups: readonly string[],
  { folder, name, found, path, root }: Replaced,
): Promise<void> {
  if ((await findMountsAround(await realpath(descriptorPath(found.handle)), root)).length > 0)
    throw conflictError(
      path,
      'exists without a quota, and can get one only while no sandbox has mounted it or a folder around it',
    )
  if (await hasSubvolume(found.handle))
    throw conflictError(path, 'can have no quota: it contains a folder with a quota')
  const temporary = temporaryNameOf(found.stats.ino)
  const [from, to] = [`${pathOfWorker(folder)}/${name}`, `${pathOfWorker(folder)}/${temporary}`]
  await deleteTemporary(folder, temporary) // of a killed worker
  try {
    await btrfs.createSubvolume(to, groups)
    const command = ['--archive', '--reflink=always', '--no-target-directory', '--', from, to]
    await runCommand('cp', command, { timeoutMs: COPY_TIMEOUT_MS })
    await btrfs.sync() // otherwise the limit would not count the content until the next commit
    await btrfs.exchange(from, to)
  } finally {
    await deleteTemporary(folder, temporary) // the copy if it failed, or the folder that it has replaced
  }
}

async function hasSubvolume(folder: FileHandle): Promise<boolean> {
  const command = ['.', '-type', 'd', '-inum', String(ROOT_INODE), '-print', '-quit']
  const { stdout } = await runCommand('find', command, {
    timeoutMs: COPY_TIMEOUT_MS,
    cwd: String(descriptorPath(folder)),
  })
  return stdout !== ''
}
