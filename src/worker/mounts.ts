import { chmod, mkdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../lib/clock.ts'
import { CommandError, localCommands, type CommandRunner } from '../lib/run-command.ts'
import { parseMountinfo } from './processes/mountinfo.ts'

const MOUNT_TIMEOUT_MS = 20_000
/**
 * How often to retry the unmount of a busy mount, and how long to wait between tries. The process that uses the mount
 * usually ends soon.
 */
const BUSY_TRIES = 40
const BUSY_PAUSE_MS = 10

/** Runs mount(8) with `args`. Relative paths in mount options are resolved from `cwd`. */
export async function mount(commands: CommandRunner, args: readonly string[], cwd = '/'): Promise<void> {
  await commands.run('mount', args, { timeoutMs: MOUNT_TIMEOUT_MS, cwd })
}

/** Lists every mount point at or beneath a folder, innermost first: the order in which to unmount them. */
export async function mountPointsBelow(folder: string): Promise<readonly string[]> {
  const points = parseMountinfo(await readFile('/proc/self/mountinfo', 'utf8')).map(({ point }) => point)
  return points.filter((point) => point === folder || point.startsWith(`${folder}/`)).reverse()
}

type UnmountDeps = { readonly clock: Clock; readonly commands: CommandRunner }

/**
 * Unmounts everything at or beneath a folder. A mount that stays busy is detached; the kernel frees it when the last process
 * that uses it ends. Succeeds if nothing is mounted.
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

/** The folder of the mounts of all installations on this machine. */
export const RUN_FOLDER = '/run/sandyard'

/** The folder in which the owner of a key mounts file systems. `makeMountDir` creates that folder. */
export function mountFolderOf(key: string): string {
  return join(RUN_FOLDER, key)
}

/**
 * Creates `mountFolderOf(key)` as a shared mount. Container runtimes have mount namespaces of their own, with a copy of
 * every mount that existed when they started. An unmount beneath a shared mount also takes place in those namespaces;
 * the file system is then really free. The folder is in `/run`, because user 0 of a sandbox must be able to enter every
 * parent folder. That user is unprivileged on the host, and the parent folders of the data folder may be closed to it. May be
 * repeated.
 */
export async function makeMountDir(key: string): Promise<string> {
  const path = mountFolderOf(key)
  await mkdir(path, { recursive: true, mode: 0o711 })
  for (const folder of [RUN_FOLDER, path]) await chmod(folder, 0o711)
  if (!(await mountPointsBelow(path)).includes(path))
    await mount(localCommands, ['--bind', '--make-shared', path, path])
  return path
}

/** The key of the driver for OCI runtimes of an installation. */
export function ociKey(installationId: string): string {
  return `${installationId}-sandboxes`
}
