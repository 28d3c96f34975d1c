import { mkdir, readdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { localCommands } from '../../../../lib/run-command.ts'
import { mount, mountPointsBelow } from '../../../mounts.ts'

/** The name of the folder in the driver's mount folder that has the named pipes of commands. */
export const PIPE_FOLDER = 'pipes'

/** Each pipe takes less than 2 KiB. */
const SIZE = '4m'

/**
 * Mounts an empty folder for a worker's `FifoPool`, which only root may enter, and returns its path. It is in memory: making a pipe
 * there takes some microseconds, and 50 to 500 on a disk's file system (ext4, 2026-11). May be repeated.
 */
export async function mountPipeFolder(mountDir: string): Promise<string> {
  const path = join(mountDir, PIPE_FOLDER)
  await mkdir(path, { recursive: true, mode: 0o700 })
  if ((await mountPointsBelow(mountDir)).includes(path))
    await Promise.all((await readdir(path)).map((name) => rm(join(path, name)))) // of an earlier worker
  else await mount(localCommands, ['-t', 'tmpfs', '-o', `nosuid,nodev,noexec,mode=700,size=${SIZE}`, 'tmpfs', path])
  return path
}
