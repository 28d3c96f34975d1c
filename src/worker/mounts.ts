import { createHash } from 'node:crypto'
import { chmod, mkdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../lib/clock.ts'
import { CommandError, localCommands, type CommandRunner } from '../lib/run-command.ts'
import { parseMountinfo } from './processes/mountinfo.ts'

const MOUNT_TIMEOUT_MS = 20_000
/** How often, and how far apart, to retry a busy mount: its holder is usually about to end. */
const BUSY_TRIES = 40
const BUSY_PAUSE_MS = 10

/** Runs mount(8) with `args`. Relative paths in options start at `cwd`. */
export async function mount(commands: CommandRunner, args: readonly string[], cwd = '/'): Promise<void> {
  await commands.run('mount', args, { timeoutMs: MOUNT_TIMEOUT_MS, cwd })
}

/** Every mount point at or beneath a folder, the innermost first. */
export async function mountPointsBelow(folder: string): Promise<readonly string[]> {
  const points = parseMountinfo(await readFile('/proc/self/mountinfo', 'utf8')).map(({ point }) => point)
  return points.filter((point) => point === folder || point.startsWith(`${folder}/`)).reverse()
}

type UnmountDeps = { readonly clock: Clock; readonly commands: CommandRunner }

/**
 * Unmounts everything at or beneath a folder. A mount that stays busy is detached, and freed when its holder ends. A
 * folder without mounts succeeds.
 */
export async function unmountBelow(folder: string, deps: UnmountDeps): Promise<void> {
  for (const point of await mountPointsBelow(folder)) await unmount(point, deps)
}

async function unmount(point: string, { clock, commands }: UnmountDeps): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      await commands.run('umount', tries < BUSY_TRIES ? [point] : ['-l', point], { timeoutMs: MOUNT_TIMEOUT_MS })
      return
    } catch (error) {
      if (!(error instanceof CommandError)) throw error
      if (!(await mountPointsBelow(point)).includes(point)) return
      if (tries >= BUSY_TRIES) throw error
    }
    await clock.sleep(BUSY_PAUSE_MS)
  }
}

/** A short name for a folder, used where its path does not fit: in names of cgroups, mount points and devices. */
export function folderHash(dir: string): string {
  return createHash('sha256').update(dir).digest('hex').slice(0, 12)
}

/** Where the owner of `dir` mounts file systems. `makeMountDir` creates it. */
export function mountFolderOf(dir: string): string {
  return join('/run/sandyard', folderHash(dir))
}

/**
 * Creates `mountFolderOf(dir)` as a shared mount. An unmount in it then reaches the mount namespaces of runtimes, which
 * would otherwise keep every file system that was mounted when they started. The folder lies in `/run` and not in `dir`:
 * user 0 of a sandbox, who is unprivileged on the host, must pass every folder on the way. May be repeated.
 */
export async function makeMountDir(dir: string): Promise<string> {
  const path = mountFolderOf(dir)
  await mkdir(path, { recursive: true, mode: 0o711 })
  for (const folder of ['/run/sandyard', path]) await chmod(folder, 0o711)
  if (!(await mountPointsBelow(path)).includes(path))
    await mount(localCommands, ['--bind', '--make-shared', path, path])
  return path
}
